"""Tests of the answers of one group's state machine in each state."""

from __future__ import annotations

import pytest

from millrace.errors import (
    FencedInstanceIdError,
    GroupMaxSizeReachedError,
    IllegalGenerationError,
    InconsistentGroupProtocolError,
    RebalanceInProgressError,
    StorageError,
    UnknownMemberError,
)
from millrace_broker.groups.classic_group import NEW_MEMBER_JOIN_TIMEOUT_MS
from millrace_broker.groups.effects import TimerKey, TimerKind
from millrace_broker.groups.requests import GroupSettings, Identity, JoinAnswer, MemberIdGiven
from millrace_broker.groups.states import GroupState

from .world import NOBODY, REBALANCE_MS, SESSION_MS, World, other, restored

# --- joining ---------------------------------------------------------------------------------------------------------


def test_a_first_join_is_given_a_member_id() -> None:
    world = World()
    answer = world.answers[world.join()]
    assert isinstance(answer, MemberIdGiven)
    assert world.group.state is GroupState.EMPTY


def test_an_unused_member_id_expires_after_a_session() -> None:
    world = World()
    member_id = world.new_member_id()
    world.pass_time(SESSION_MS)
    assert not world.group.pending_members
    assert isinstance(world.answers[world.join(member_id)], UnknownMemberError)


def test_a_rebalance_waits_for_a_client_that_was_given_a_member_id_until_it_leaves() -> None:
    world = World()
    a = world.stable("a")["a"]
    expected = world.new_member_id()
    call = world.join(a.member_id)
    assert call in world.parked
    assert world.refusal("leave", Identity(member_id=expected)) is None
    assert world.answers[call].generation_id == a.generation_id + 1
    assert not world.group.pending_members
    assert TimerKey(TimerKind.PENDING, expected) not in world.timers


@pytest.mark.parametrize("had_members", [False, True])
def test_the_first_rebalance_of_an_empty_group_waits_for_more_members(had_members: bool) -> None:
    world = World()
    if had_members:
        assert world.refusal("leave", world.stable("a")["a"]) is None
        world.stores_done()
    assert world.group.is_empty
    generation = world.group.generation_id + 1
    first = world.join(world.new_member_id())
    world.pass_time(2000)
    second = world.join(world.new_member_id())
    world.pass_time(2000)  # the second member joined within the delay, which starts again
    assert world.parked == {first, second}
    world.pass_time(2000)
    answers = [world.answers[first], world.answers[second]]
    assert [answer.generation_id for answer in answers] == [generation] * 2
    assert [len(answer.members) for answer in answers] == [2, 0]
    assert answers[1].leader == answers[0].member_id


def test_the_first_rebalance_is_not_drawn_out_beyond_its_timeout() -> None:
    world = World()
    calls = [world.join(world.new_member_id())]
    for _ in range(9):
        world.pass_time(2500)
        calls.append(world.join(world.new_member_id()))
    early = calls[: REBALANCE_MS // 2500]
    assert not world.parked & set(early)


@pytest.mark.parametrize("timeout_ms", [2500, 3000])
def test_the_first_rebalance_waits_once_if_the_members_wait_no_longer(timeout_ms: int) -> None:
    world = World()
    first = world.join(world.new_member_id(), rebalance_timeout_ms=timeout_ms)
    world.pass_time(2000)
    second = world.join(world.new_member_id(), rebalance_timeout_ms=timeout_ms)
    world.pass_time(1000)
    assert {world.answers[call].generation_id for call in (first, second)} == {1}


def test_a_member_joins_again_with_other_timeouts() -> None:
    world = World()
    a = world.stable("a")["a"]
    world.join(a.member_id, session_timeout_ms=7000, rebalance_timeout_ms=8000)
    [stored] = world.group.record_content().members
    assert (stored.session_timeout_ms, stored.rebalance_timeout_ms) == (7000, 8000)


def test_later_rebalances_end_when_all_have_joined() -> None:
    world = World()
    members = world.stable("a", "b")
    new = world.join(world.new_member_id())
    assert world.refusal("heartbeat", members["a"]) is RebalanceInProgressError
    calls = [world.join(members[name].member_id) for name in "ab"]
    assert world.answers[new].generation_id == members["a"].generation_id + 1
    assert not world.parked
    assert all(call in world.answers for call in calls)


def test_a_member_that_does_not_rejoin_in_time_is_removed() -> None:
    world = World()
    members = world.stable("a", "b")
    call = world.join(members["a"].member_id)
    for _ in range(4):
        world.pass_time(REBALANCE_MS // 4)
        world.refusal("heartbeat", members["b"])  # the member sends heartbeats, but does not join
    assert [member.member_id for member in world.answers[call].members] == [members["a"].member_id]
    assert world.refusal("heartbeat", members["b"]) is UnknownMemberError


@pytest.mark.parametrize("names", [("a", "s*"), ("s*", "a")])
def test_a_static_member_keeps_its_place_when_it_does_not_join_again_in_time(names: tuple[str, str]) -> None:
    world = World()
    members = world.stable(*names)
    call = world.join(members["a"].member_id, protocols=(("range", b"changed"),))
    for _ in range(4):
        world.pass_time(REBALANCE_MS // 4)
        world.refusal("heartbeat", members["s*"])
    answer = world.answers[call]
    assert len(answer.members) == 2
    assert answer.leader == members["a"].member_id, "the leader is a member that has joined"
    assert answer.generation_id == members["a"].generation_id + 1


def test_without_any_joined_member_a_rebalance_continues_until_sessions_end() -> None:
    world = World()
    members = world.stable("s*", "t*", session_timeout_ms=60_000)
    abandoned = world.join(members["s*"].member_id, group_instance_id="s*", protocols=(("range", b"new"),))
    world.abandon(abandoned)
    world.pass_time(REBALANCE_MS)
    assert world.group.state is GroupState.PREPARING_REBALANCE
    world.pass_time(60_000)
    assert world.group.state is GroupState.EMPTY


def test_members_must_have_an_assignor_in_common() -> None:
    world = World()
    assert isinstance(world.answers[world.join(protocols=())], InconsistentGroupProtocolError)
    assert isinstance(world.answers[world.join(protocol_type="")], InconsistentGroupProtocolError)
    world.stable("a", protocols=(("range", b""), ("sticky", b"")))
    assert isinstance(world.answers[world.join(protocols=(("other", b""),))], InconsistentGroupProtocolError)
    assert isinstance(world.answers[world.join(protocol_type="connect")], InconsistentGroupProtocolError)
    assert isinstance(world.answers[world.join(protocols=(("sticky", b""),))], MemberIdGiven)


def test_members_vote_for_the_assignor() -> None:
    world = World()
    votes = (("range", "sticky"), ("sticky", "range"), ("sticky", "other", "range"))
    calls = [
        world.join(world.new_member_id(), protocols=tuple((name, name.encode()) for name in names)) for names in votes
    ]
    world.pass_time(REBALANCE_MS // 2)
    answer: JoinAnswer = world.answers[calls[0]]
    assert answer.protocol_name == "sticky"
    assert [member.metadata for member in answer.members] == [b"sticky"] * 3


def test_a_group_takes_no_more_members_than_allowed() -> None:
    world = World(GroupSettings(initial_rebalance_delay_ms=0, max_size=2))
    world.stable("a", "b")
    assert isinstance(world.answers[world.join()], GroupMaxSizeReachedError)


def test_a_group_of_the_greatest_allowed_size_is_stable_after_a_restart() -> None:
    world = restored("m0", "m1", leader="m0", settings=GroupSettings(max_size=2))
    assert world.group.state is GroupState.STABLE


def test_of_too_many_members_those_that_join_again_last_are_refused() -> None:
    world = restored("m0", "m1", "m2", leader="m0", settings=GroupSettings(max_size=2))
    assert world.group.state is GroupState.PREPARING_REBALANCE
    calls = [world.join(f"m{number}") for number in range(3)]
    assert isinstance(world.answers[calls[2]], GroupMaxSizeReachedError)
    assert [world.answers[call].generation_id for call in calls[:2]] == [5, 5]


def test_a_follower_that_rejoins_unchanged_causes_no_rebalance() -> None:
    world = World()
    members = world.stable("a", "b")
    answer = world.answers[world.join(members["b"].member_id)]
    assert answer.generation_id == members["b"].generation_id
    assert world.group.state is GroupState.STABLE


def test_a_leader_that_joins_again_begins_a_rebalance() -> None:
    world = World()
    members = world.stable("a", "b")
    world.join(members["a"].member_id)
    assert world.group.state is GroupState.PREPARING_REBALANCE


def test_a_changed_subscription_begins_a_rebalance() -> None:
    world = World()
    members = world.stable("a", "b")
    world.join(members["b"].member_id, protocols=(("range", b"changed"),))
    assert world.group.state is GroupState.PREPARING_REBALANCE


def test_a_lost_answer_to_a_join_is_given_again() -> None:
    world = World()
    call = world.join(world.new_member_id())
    world.pass_time(3000)
    answer = world.answers[call]
    assert world.answers[world.join(answer.member_id)] == answer


def test_a_member_that_asks_twice_is_answered_at_the_second_place() -> None:
    world = World()
    member_id = world.new_member_id()
    first, second = world.join(member_id), world.join(member_id)
    assert isinstance(world.answers[first], RebalanceInProgressError)
    assert second in world.parked


def test_a_joining_member_whose_caller_has_gone_is_not_waited_for_longer_than_its_session() -> None:
    world = World()
    members = world.stable("a", "b", "c")
    joined = world.join(members["a"].member_id)
    world.abandon(world.join(members["b"].member_id))
    last = world.join(members["c"].member_id)
    assert world.parked == {joined, last}
    world.pass_time(SESSION_MS)
    assert world.answers[joined].generation_id == members["a"].generation_id + 1
    assert len(world.answers[joined].members) == 2


def test_a_member_whose_caller_has_gone_has_a_whole_session_to_call_again() -> None:
    world = World()
    members = world.stable("a", "b", rebalance_timeout_ms=10 * SESSION_MS)
    a, b = members["a"], members["b"]
    call = world.join(a.member_id, rebalance_timeout_ms=10 * SESSION_MS)

    def pass_time(ms: int) -> bool:
        """Let ``b`` send heartbeats; return whether ``a`` is a member afterwards."""
        world.pass_time(ms)
        world.refusal("heartbeat", b)
        return a.member_id in world.group.members

    for _ in range(3):
        assert pass_time(SESSION_MS - 1), "its call is open"
    world.abandon(call)
    assert pass_time(SESSION_MS - 1)
    assert not pass_time(1)


def test_a_new_member_whose_first_caller_has_gone_keeps_its_second_call_open() -> None:
    world = World()
    a = world.stable("a", rebalance_timeout_ms=10 * SESSION_MS)["a"]
    member_id = world.new_member_id()
    world.abandon(world.join(member_id))
    call = world.join(member_id)
    for _ in range(3):
        world.pass_time(SESSION_MS - 1)
        world.refusal("heartbeat", a)
    assert call in world.parked


def test_a_first_join_is_parked_for_a_limited_time() -> None:
    world = World()
    members = world.stable("a", rebalance_timeout_ms=2 * NEW_MEMBER_JOIN_TIMEOUT_MS)
    new = world.join(world.new_member_id())
    while world.now_ms < 1_000_000 + NEW_MEMBER_JOIN_TIMEOUT_MS + REBALANCE_MS:
        world.pass_time(5000)
        world.refusal("heartbeat", members["a"])
    assert isinstance(world.answers[new], UnknownMemberError)


# --- sync, heartbeat, leave ------------------------------------------------------------------------------------------


def test_followers_wait_for_the_leaders_assignment_to_be_written_down() -> None:
    world = World()
    calls = {name: world.join(world.new_member_id()) for name in "ab"}
    world.pass_time(REBALANCE_MS // 2)
    ids = {name: Identity(member_id=world.answers[call].member_id, generation_id=1) for name, call in calls.items()}
    follower = world.sync(ids["b"])
    leader = world.sync(ids["a"], {ids["b"].member_id: b"all"})
    assert world.parked == {follower, leader}
    assert [member.assignment for member in world.stores[0].group.members] == [b"", b"all"]
    world.stores_done()
    assert [world.answers[call].assignment for call in (leader, follower)] == [b"", b"all"]
    assert world.group.state is GroupState.STABLE


def test_a_member_that_asks_twice_for_its_assignment_gets_it_at_the_second_place() -> None:
    world = World()
    calls = [world.join(world.new_member_id()) for _ in "ab"]
    world.pass_time(REBALANCE_MS // 2)
    leader, follower = (Identity(member_id=world.answers[call].member_id, generation_id=1) for call in calls)
    first, second = world.sync(follower), world.sync(follower)
    assert isinstance(world.answers[first], RebalanceInProgressError)
    world.sync(leader, {follower.member_id: b"all"})
    world.stores_done()
    assert world.answers[second].assignment == b"all"


def test_an_assignment_that_cannot_be_stored_is_given_to_no_member() -> None:
    world = World()
    call = world.join(world.new_member_id())
    world.pass_time(3000)
    identity = Identity(member_id=world.answers[call].member_id, generation_id=1)
    synced = world.sync(identity, {identity.member_id: b"x"})
    world.fail_store()
    assert isinstance(world.answers[synced], StorageError)
    assert world.group.state is GroupState.PREPARING_REBALANCE


def test_members_that_do_not_ask_for_their_assignment_are_gone() -> None:
    world = World()
    calls = {name: world.join(world.new_member_id()) for name in "ab"}
    world.pass_time(REBALANCE_MS // 2)
    ids = {name: Identity(member_id=world.answers[call].member_id, generation_id=1) for name, call in calls.items()}
    world.sync(ids["a"])
    world.stores_done()
    for _ in range(4):
        world.pass_time(REBALANCE_MS // 4)
        world.refusal("heartbeat", ids["a"])
        world.refusal("heartbeat", ids["b"])  # the member sends heartbeats, but does not sync
    assert world.refusal("heartbeat", ids["b"]) is UnknownMemberError
    assert world.refusal("heartbeat", ids["a"]) is RebalanceInProgressError


def test_a_silent_member_is_gone_after_its_session() -> None:
    world = World()
    members = world.stable("a", "b")
    world.pass_time(SESSION_MS - 1)
    assert world.refusal("heartbeat", members["a"]) is None
    world.pass_time(1)
    assert world.refusal("heartbeat", members["b"]) is UnknownMemberError
    assert world.group.state is GroupState.PREPARING_REBALANCE


def test_the_last_member_leaves_an_empty_group_behind() -> None:
    world = World()
    members = world.stable("a")
    world.refusal("leave", members["a"])
    assert world.group.state is GroupState.EMPTY
    assert not world.timers
    assert world.stores[-1].group.generation_id == 2
    assert world.stores[-1].group.members == ()


@pytest.mark.parametrize("request_name", ["heartbeat", "sync", "commit"])
def test_a_member_of_another_generation_is_refused(request_name: str) -> None:
    world = World()
    members = world.stable("a", "s*")
    a, s = members["a"], members["s*"]

    def refusal(identity: Identity) -> type[Exception] | None:
        if request_name == "sync":
            answer = world.answers[world.sync(identity)]
            return type(answer) if isinstance(answer, Exception) else None
        return world.refusal({"commit": "check_commit"}.get(request_name, request_name), identity)

    assert refusal(a) is None
    assert refusal(other(a, member_id="unknown")) is UnknownMemberError
    assert refusal(other(a, generation_id=a.generation_id - 1)) is IllegalGenerationError
    assert refusal(other(a, generation_id=a.generation_id + 1)) is IllegalGenerationError
    assert refusal(other(s, member_id=a.member_id)) is FencedInstanceIdError
    assert refusal(other(a, group_instance_id="nobody's")) is UnknownMemberError


def test_a_sync_names_the_protocol_that_was_chosen() -> None:
    world = World()
    a = world.stable("a")["a"]
    wrong = world.sync(a, protocol_name="sticky")
    assert isinstance(world.answers[wrong], InconsistentGroupProtocolError)
    wrong = world.sync(a, protocol_type="connect")
    assert isinstance(world.answers[wrong], InconsistentGroupProtocolError)
    right = world.sync(a, protocol_type="consumer", protocol_name="range")
    assert world.answers[right].assignment == b"a"


# --- commits ---------------------------------------------------------------------------------------------------------


def test_only_members_commit_while_there_are_some() -> None:
    world = World()
    assert world.refusal("check_commit", NOBODY) is None
    assert world.refusal("check_commit", Identity(member_id="m", generation_id=0)) is UnknownMemberError
    a = world.stable("a")["a"]
    assert world.refusal("check_commit", NOBODY) is UnknownMemberError
    assert world.refusal("check_commit", a) is None
    assert world.refusal("check_commit", NOBODY, is_transactional=True) is None
    assert world.refusal("check_commit", other(a, generation_id=9), is_transactional=True) is IllegalGenerationError
    without_generation = other(a, generation_id=-1)
    for is_transactional in (False, True):
        refusal = world.refusal("check_commit", without_generation, is_transactional=is_transactional)
        assert refusal is IllegalGenerationError
    gone = other(NOBODY, group_instance_id="gone")
    assert world.refusal("check_commit", gone, is_transactional=True) is UnknownMemberError
    world.refusal("leave", a)
    assert world.refusal("check_commit", NOBODY) is None
    assert world.refusal("check_commit", a) is UnknownMemberError


def test_the_last_generation_commits_until_the_next_one_begins() -> None:
    world = World()
    members = world.stable("a", "b")
    world.join(members["a"].member_id)
    assert world.refusal("check_commit", members["b"]) is None
    world.join(members["b"].member_id)
    assert world.group.state is GroupState.COMPLETING_REBALANCE
    assert world.refusal("check_commit", members["b"]) is IllegalGenerationError
    now = other(members["b"], generation_id=world.group.generation_id)
    assert world.refusal("check_commit", now) is RebalanceInProgressError
    assert world.refusal("check_commit", now, is_transactional=True) is None
    assert world.refusal("heartbeat", now) is None


def test_a_commit_is_a_sign_of_life() -> None:
    world = World()
    a = world.stable("a")["a"]
    for _ in range(3):
        world.pass_time(SESSION_MS - 1)
        assert world.refusal("check_commit", a) is None
