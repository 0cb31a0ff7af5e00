"""Tests of one group's state machine: its answers in each state."""

from __future__ import annotations

import pytest

from millrace.coordinator_records import ConsumerProtocolSubscription, write_versioned
from millrace.errors import (
    CoordinatorNotAvailableError,
    FencedInstanceIdError,
    GroupMaxSizeReachedError,
    IllegalGenerationError,
    InconsistentGroupProtocolError,
    InvalidSessionTimeoutError,
    RebalanceInProgressError,
    StorageError,
    UnknownMemberError,
)
from millrace_broker.groups.classic_group import NEW_MEMBER_JOIN_TIMEOUT_MS, ClassicGroup
from millrace_broker.groups.effects import StoredGroup, StoredMember, TimerKey, TimerKind
from millrace_broker.groups.requests import GroupSettings, Identity, JoinAnswer, MemberIdGiven
from millrace_broker.groups.states import GroupState

from .world import REBALANCE_MS, SESSION_MS, SETTINGS, World

NOBODY = Identity(member_id="")


def other(identity: Identity, **changes: object) -> Identity:
    fields = {
        "member_id": identity.member_id,
        "group_instance_id": identity.group_instance_id,
        "generation_id": identity.generation_id,
    }
    return Identity(**{**fields, **changes})  # type: ignore[arg-type]


def subscription(*topics: str, owned: int = -1) -> bytes:
    return write_versioned(ConsumerProtocolSubscription(topics=topics, user_data=None, generation_id=owned), 3)


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


def test_the_first_rebalance_waits_for_more_members() -> None:
    world = World()
    first = world.join(world.new_member_id())
    world.pass_time(2000)
    second = world.join(world.new_member_id())
    world.pass_time(2000)  # the second member joined within the delay, which starts again
    assert world.parked == {first, second}
    world.pass_time(2000)
    answers = [world.answers[first], world.answers[second]]
    assert [answer.generation_id for answer in answers] == [1, 1]
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


@pytest.mark.parametrize("session_ms", [5999, 60_001])
def test_sessions_are_within_the_brokers_limits(session_ms: int) -> None:
    world = World()
    call = world.join(session_timeout_ms=session_ms)
    assert isinstance(world.answers[call], InvalidSessionTimeoutError)


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


def test_a_first_join_is_parked_for_a_limited_time() -> None:
    world = World()
    members = world.stable("a", rebalance_timeout_ms=2 * NEW_MEMBER_JOIN_TIMEOUT_MS)
    new = world.join(world.new_member_id())
    while world.now_ms < 1_000_000 + NEW_MEMBER_JOIN_TIMEOUT_MS + REBALANCE_MS:
        world.pass_time(5000)
        world.refusal("heartbeat", members["a"])
    assert isinstance(world.answers[new], UnknownMemberError)


# --- static members --------------------------------------------------------------------------------------------------


def test_a_static_member_comes_back_without_a_rebalance() -> None:
    world = World()
    members = world.stable("a", "s*")
    call = world.join(group_instance_id="s*")
    assert call in world.parked  # the new member id is persisted first
    world.stores_done()
    answer = world.answers[call]
    assert answer.generation_id == members["s*"].generation_id
    assert answer.member_id != members["s*"].member_id
    assert (answer.skip_assignment, answer.members) == (False, ())
    assert world.group.state is GroupState.STABLE
    synced = world.sync(other(members["s*"], member_id=answer.member_id))
    assert world.answers[synced].assignment == b"s*"
    assert world.refusal("heartbeat", members["s*"]) is FencedInstanceIdError
    assert world.refusal("heartbeat", other(members["s*"], group_instance_id=None)) is UnknownMemberError


def test_a_static_leader_that_comes_back_need_not_assign_again() -> None:
    world = World()
    world.stable("s*", "a")
    call = world.join(group_instance_id="s*")
    world.stores_done()
    answer = world.answers[call]
    assert answer.leader == answer.member_id
    assert answer.skip_assignment
    assert len(answer.members) == 2


def test_a_static_member_with_other_topics_begins_a_rebalance() -> None:
    world = World()
    world.stable("a", "s*", protocols=(("range", subscription("t")),))
    world.join(group_instance_id="s*", protocols=(("range", subscription("t", "u")),))
    assert world.group.state is GroupState.PREPARING_REBALANCE


@pytest.mark.parametrize(
    ("metadata", "state"), [(b"same", GroupState.STABLE), (b"other", GroupState.PREPARING_REBALANCE)]
)
def test_a_static_member_of_a_group_that_is_not_of_consumers_changes_with_its_metadata(
    metadata: bytes, state: GroupState
) -> None:
    world = World()
    world.stable("a", "s*", protocol_type="connect", protocols=(("sessioned", b"same"),))
    world.join(group_instance_id="s*", protocol_type="connect", protocols=(("sessioned", metadata),))
    assert world.group.state is state


def test_the_earlier_assignment_of_a_static_member_is_no_change() -> None:
    world = World()
    world.stable("a", "s*", protocols=(("range", subscription("t")),))
    world.join(group_instance_id="s*", protocols=(("range", subscription("t", owned=7)),))
    assert world.group.state is GroupState.STABLE


def test_a_static_member_that_cannot_be_written_down_is_the_one_it_was() -> None:
    world = World()
    members = world.stable("a", "s*")
    before = world.group.record_content()
    protocols = (("range", b"r"), ("sticky", b"s"))
    call = world.join(group_instance_id="s*", session_timeout_ms=7000, rebalance_timeout_ms=8000, protocols=protocols)
    [written] = [each for each in world.stores[-1].group.members if each.group_instance_id == "s*"]
    assert (written.session_timeout_ms, written.rebalance_timeout_ms) == (7000, 8000)
    assert (written.member_id, written.assignment) != (members["s*"].member_id, b"")
    world.fail_store()
    assert isinstance(world.answers[call], StorageError)
    assert world.group.record_content() == before
    assert world.refusal("heartbeat", members["s*"]) is None
    assert isinstance(world.answers[world.join(protocols=(("sticky", b"s"),))], InconsistentGroupProtocolError)


def test_a_static_member_that_returns_during_an_assignment_starts_a_new_rebalance() -> None:
    world = World()
    calls = {name: world.join(group_instance_id=name) for name in ("s*", "t*")}
    world.pass_time(REBALANCE_MS // 2)
    answer = world.answers[calls["t*"]]
    waiting = world.sync(Identity(member_id=answer.member_id, generation_id=1, group_instance_id="t*"))
    world.join(group_instance_id="t*")
    assert isinstance(world.answers[waiting], FencedInstanceIdError)
    assert world.group.state is GroupState.PREPARING_REBALANCE
    assert TimerKey(TimerKind.SYNC) not in world.timers, "no assignment is to be fetched before the next generation"


def test_static_members_leave_by_their_instance() -> None:
    world = World()
    world.stable("s*")
    assert world.refusal("leave", Identity(member_id="", group_instance_id="t*")) is UnknownMemberError
    assert world.refusal("leave", Identity(member_id="", group_instance_id="s*")) is None
    assert world.group.state is GroupState.EMPTY


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


# --- the end, and the beginning --------------------------------------------------------------------------------------


def test_a_closed_group_sends_everybody_away() -> None:
    world = World()
    members = world.stable("a", "b")
    call = world.join(members["a"].member_id)
    world.group.close()
    world.settle()
    assert isinstance(world.answers[call], CoordinatorNotAvailableError)
    assert not world.timers
    assert world.refusal("heartbeat", members["a"]) is CoordinatorNotAvailableError
    assert isinstance(world.answers[world.join()], CoordinatorNotAvailableError)


def test_a_deleted_group_waits_for_nothing() -> None:
    world = World()
    world.join()
    world.group.delete()
    world.settle()
    assert (world.group.state, world.group.pending_members, world.timers) == (GroupState.DEAD, frozenset(), {})
    assert isinstance(world.answers[world.join()], CoordinatorNotAvailableError)


def test_members_join_again_when_their_group_becomes_a_consumer_group() -> None:
    world = World()
    world.group.upgrade()
    assert world.group.state is GroupState.DEAD
    world = World()
    call = world.join(world.stable("a", "b")["a"].member_id)
    world.group.upgrade()
    world.settle()
    assert isinstance(world.answers[call], RebalanceInProgressError)
    assert (world.group.state, world.timers) == (GroupState.DEAD, {})


def test_a_group_that_is_closed_before_its_assignment_sends_away_the_members_that_wait_for_it() -> None:
    world = World()
    call = world.join(world.new_member_id())
    world.pass_time(3000)
    waiting = world.sync(Identity(member_id=world.answers[call].member_id, generation_id=1))
    world.group.close()
    world.settle()
    assert isinstance(world.answers[waiting], CoordinatorNotAvailableError)
    assert not world.timers


def stored_member(member_id: str) -> StoredMember:
    return StoredMember(
        member_id=member_id,
        group_instance_id=None,
        client_id="c",
        client_host="/h",
        session_timeout_ms=SESSION_MS,
        rebalance_timeout_ms=REBALANCE_MS,
        subscription=subscription("t"),
        assignment=b"mine",
    )


def restored(*member_ids: str, leader: str, settings: GroupSettings = SETTINGS) -> World:
    stored = StoredGroup(
        protocol_type="consumer",
        generation_id=4,
        protocol_name="range",
        leader=leader,
        members=tuple(stored_member(each) for each in member_ids),
    )
    return World(settings, ClassicGroup.restore("g", settings, stored, 1_000_000))


def test_a_group_that_was_read_continues_where_it_was() -> None:
    world = World()
    members = world.stable("a", "b")
    stored = world.group.record_content()
    again = World(SETTINGS, ClassicGroup.restore("g", SETTINGS, stored, 1_000_000))
    assert again.group.state is GroupState.STABLE
    assert again.group.members.leader == world.group.members.leader
    assert again.answers[again.sync(members["b"])].assignment == b"b"
    assert again.refusal("heartbeat", members["a"]) is None
    again.pass_time(SESSION_MS)
    assert again.group.state is GroupState.EMPTY


def test_the_leader_of_a_group_that_was_read_leads_its_next_generation_too() -> None:
    world = restored("m0", "m1", leader="m1")
    assert world.group.members.leader == "m1"
    calls = [world.join(member_id) for member_id in ("m1", "m0")]
    assert {world.answers[call].leader for call in calls} == {"m1"}
    assert restored("m0", "m1", leader="gone").group.members.leader == "m0"


def test_members_of_a_former_consumer_group_join_again_with_their_classic_assignors() -> None:
    world = restored("m0", leader="m0")
    world.group.rejoin({"m0": (("sticky", b""),)}, world.now_ms)
    world.settle()
    assert world.group.state is GroupState.PREPARING_REBALANCE
    assert isinstance(world.answers[world.join(protocols=(("range", b""),))], InconsistentGroupProtocolError)
    assert isinstance(world.answers[world.join(protocols=(("sticky", b""),))], MemberIdGiven)


def test_the_topics_of_a_group_are_those_of_its_members() -> None:
    world = World()
    assert world.group.subscribed_topics() is None
    world.join(world.new_member_id())
    assert world.group.subscribed_topics() is None, "no assignor is chosen yet"
    no_members = StoredGroup(protocol_type="consumer", generation_id=0)
    assert ClassicGroup.restore("g", SETTINGS, no_members, 1_000_000).subscribed_topics() == frozenset()
    world = World()
    members = world.stable("a", "b", protocols=(("range", subscription("t", "u")),))
    assert world.group.subscribed_topics() == {"t", "u"}
    assert world.group.stable_protocol == "range"
    world.join(members["a"].member_id)
    assert world.group.stable_protocol is None
    world = World()
    world.stable("a", protocols=(("range", b"no subscription"),))
    assert world.group.subscribed_topics() is None
