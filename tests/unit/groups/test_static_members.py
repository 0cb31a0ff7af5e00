"""Tests of static members (KIP-345).

A new process takes over the place of the earlier one.
"""

from __future__ import annotations

import pytest

from millrace.errors import (
    FencedInstanceIdError,
    InvalidRequestError,
    StorageError,
    UnknownMemberError,
)
from millrace_broker.groups.effects import TimerKey, TimerKind
from millrace_broker.groups.requests import Identity, JoinAnswer, MemberIdGiven
from millrace_broker.groups.states import GroupState

from .world import REBALANCE_MS, SESSION_MS, World, other, subscription


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
    members = world.stable("s*", "a")
    call = world.join(group_instance_id="s*")
    world.stores_done()
    answer = world.answers[call]
    assert answer.leader == answer.member_id
    assert (answer.skip_assignment, answer.replaced_leader) == (True, members["s*"].member_id)
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
    members = world.stable("a", "s*", protocols=(("range", b"r"), ("sticky", b"s")))
    before = world.group.record_content()
    protocols = (("range", b"r"),)
    call = world.join(group_instance_id="s*", session_timeout_ms=7000, rebalance_timeout_ms=8000, protocols=protocols)
    [written] = [each for each in world.stores[-1].group.members if each.group_instance_id == "s*"]
    assert (written.session_timeout_ms, written.rebalance_timeout_ms) == (7000, 8000)
    assert (written.member_id, written.assignment) != (members["s*"].member_id, b"")
    world.fail_store()
    assert isinstance(world.answers[call], StorageError)
    assert world.group.record_content() == before
    assert world.refusal("heartbeat", members["s*"]) is None
    assert isinstance(world.answers[world.join(protocols=(("sticky", b"s"),))], MemberIdGiven)


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


def test_a_static_member_does_not_join_with_a_member_id_that_was_given_to_another_client() -> None:
    world = World()
    call = world.join(world.new_member_id(), group_instance_id="s*")
    assert isinstance(world.answers[call], InvalidRequestError)


def test_static_members_leave_by_their_instance() -> None:
    world = World()
    world.stable("s*")
    assert world.refusal("leave", Identity(member_id="", group_instance_id="t*")) is UnknownMemberError
    assert world.refusal("leave", Identity(member_id="", group_instance_id="s*")) is None
    assert world.group.state is GroupState.EMPTY


@pytest.mark.parametrize("is_written", [True, False])
def test_a_replaced_static_member_has_a_session_from_the_end_of_the_write(is_written: bool) -> None:
    world = World()
    a = world.stable("a", "s*")["a"]
    call = world.join(group_instance_id="s*")
    world.pass_time(SESSION_MS - 1)
    world.refusal("heartbeat", a)
    world.pass_time(SESSION_MS - 1)
    world.refusal("heartbeat", a)
    assert len(world.group.members) == 2, "its call is open"
    world.store_done(None if is_written else StorageError("the disk is full"))
    assert isinstance(world.answers[call], JoinAnswer if is_written else StorageError)
    world.pass_time(SESSION_MS - 1)
    world.refusal("heartbeat", a)
    assert len(world.group.members) == 2
    world.pass_time(1)
    assert [member.member_id for member in world.group.members] == [a.member_id]


@pytest.mark.parametrize("is_written", [True, False])
def test_a_static_member_that_is_replaced_before_a_rebalance_is_answered_at_its_end(is_written: bool) -> None:
    world = World()
    members = world.stable("a", "b", "s*")
    call = world.join(group_instance_id="s*")
    leader = world.join(members["a"].member_id)
    world.store_done(None if is_written else StorageError("the disk is full"))
    assert world.parked == {call, leader}
    last = world.join(members["b"].member_id)
    assert {world.answers[each].generation_id for each in (call, leader, last)} == {members["a"].generation_id + 1}


def test_a_static_member_that_is_replaced_before_it_had_its_assignment_is_not_waited_for() -> None:
    world = World()
    calls = [world.join(world.new_member_id()), world.join(group_instance_id="s*")]
    world.pass_time(REBALANCE_MS // 2)
    leader = Identity(member_id=world.answers[calls[0]].member_id, generation_id=1)
    world.sync(leader)
    world.stores_done()
    call = world.join(group_instance_id="s*")
    world.stores_done()
    new = Identity(member_id=world.answers[call].member_id, group_instance_id="s*", generation_id=1)
    for _ in range(4):
        world.pass_time(REBALANCE_MS // 4)
        assert world.refusal("heartbeat", leader) is None
        assert world.refusal("heartbeat", new) is None
    assert world.group.state is GroupState.STABLE
