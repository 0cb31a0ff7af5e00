"""Tests of the steps of a rebalance.

The steps are joins, assignments and their timeouts.
"""

from __future__ import annotations

import pytest

from millrace.errors import (
    CoordinatorNotAvailableError,
    RebalanceInProgressError,
    StorageError,
)
from millrace_broker.groups.effects import Effects, SetTimer, TimerKey, TimerKind
from millrace_broker.groups.requests import Identity
from millrace_broker.groups.states import GroupState

from .world import REBALANCE_MS, SESSION_MS, World


def completing(*names: str) -> tuple[World, list[Identity]]:
    """Return a group whose members have joined and wait for the assignment; the first one is the leader."""
    world = World()
    calls = [world.join(world.new_member_id()) for _ in names]
    world.pass_time(REBALANCE_MS // 2)
    assert world.group.state is GroupState.COMPLETING_REBALANCE
    return world, [Identity(member_id=world.answers[call].member_id, generation_id=1) for call in calls]


def test_without_any_joined_member_a_rebalance_is_tried_again_after_its_timeout() -> None:
    world = World()
    fields = {"session_timeout_ms": 60_000}
    members = world.stable("s*", "t*", **fields)
    s = members["s*"]
    world.abandon(world.join(s.member_id, group_instance_id="s*", protocols=(("range", b"new"),), **fields))
    world.pass_time(REBALANCE_MS)
    call = world.join(s.member_id, group_instance_id="s*", **fields)
    world.pass_time(REBALANCE_MS - 1)
    assert call in world.parked
    world.pass_time(1)
    assert world.answers[call].generation_id == s.generation_id + 1
    assert len(world.answers[call].members) == 2


@pytest.mark.parametrize("is_written", [True, False])
def test_a_member_that_joins_before_the_assignment_is_written_makes_all_join_again(is_written: bool) -> None:
    world, [leader, follower] = completing("a", "b")
    waiting = [world.sync(follower), world.sync(leader, {follower.member_id: b"all"})]
    new = world.join(world.new_member_id())
    assert [type(world.answers[call]) for call in waiting] == [RebalanceInProgressError] * 2
    world.store_done(None if is_written else StorageError("the disk is full"))
    assert (world.group.state, world.parked) == (GroupState.PREPARING_REBALANCE, {new})
    assert [each.assignment for each in world.group.members] == [b""] * 3


def test_the_assignment_of_an_earlier_generation_does_not_outlive_a_failed_one() -> None:
    world = World()
    members = world.stable("a", "b")
    calls = [world.join(world.new_member_id()), *(world.join(each.member_id) for each in members.values())]
    assert {world.answers[call].generation_id for call in calls} == {2}
    world.join(world.new_member_id())
    assert world.group.state is GroupState.PREPARING_REBALANCE
    assert [each.assignment for each in world.group.members] == [b""] * 4


def test_an_assignment_is_written_although_the_one_before_is_not_written_yet() -> None:
    world, [leader, follower] = completing("a", "b")
    world.sync(leader)
    world.join(world.new_member_id())
    for each in (leader, follower):
        world.join(each.member_id)
    leader = Identity(member_id=leader.member_id, generation_id=2)
    synced = world.sync(leader, {leader.member_id: b"second"})
    world.store_done()
    assert synced in world.parked
    world.store_done()
    assert world.answers[synced].assignment == b"second"


def test_the_first_assignment_of_the_leader_holds() -> None:
    world, [leader] = completing("a")
    first, second = (world.sync(leader, {leader.member_id: assignment}) for assignment in (b"first", b"second"))
    assert isinstance(world.answers[first], RebalanceInProgressError)
    [store] = world.stores
    assert [member.assignment for member in store.group.members] == [b"first"]
    world.stores_done()
    assert world.answers[second].assignment == b"first"


def test_a_group_that_is_closed_before_its_assignment_sends_away_the_members_that_wait_for_it() -> None:
    world, [_, follower] = completing("a", "b")
    waiting = world.sync(follower)
    world.group.close()
    world.settle()
    assert isinstance(world.answers[waiting], CoordinatorNotAvailableError)
    assert not world.timers


def test_a_member_whose_caller_has_gone_asks_for_its_assignment_again() -> None:
    world, [leader, follower] = completing("a", "b")
    world.abandon(world.sync(follower))
    again = world.sync(follower)
    assert world.parked == {again}
    world.sync(leader, {follower.member_id: b"all"})
    world.stores_done()
    assert world.answers[again].assignment == b"all"


def test_members_have_a_session_from_the_answer_to_their_join() -> None:
    fields = {"rebalance_timeout_ms": 10 * SESSION_MS}
    world = World()
    members = world.stable("a", "b", **fields)
    world.join(members["a"].member_id, **fields)
    for _ in range(3):
        world.pass_time(SESSION_MS - 1)
        world.refusal("heartbeat", members["b"])
    world.join(members["b"].member_id, **fields)
    assert world.group.state is GroupState.COMPLETING_REBALANCE
    world.pass_time(SESSION_MS - 1)
    assert len(world.group.members) == 2
    world.pass_time(1)
    assert world.group.state is GroupState.EMPTY


def test_members_have_a_session_from_the_answer_to_their_sync() -> None:
    fields = {"rebalance_timeout_ms": 10 * SESSION_MS}
    world = World()
    calls = [world.join(world.new_member_id(), **fields) for _ in "ab"]
    world.pass_time(6000)
    leader, follower = (Identity(member_id=world.answers[call].member_id, generation_id=1) for call in calls)
    world.sync(follower)
    for _ in range(3):
        world.pass_time(SESSION_MS - 1)
        world.refusal("heartbeat", leader)
    synced = world.sync(leader)
    world.stores_done()
    assert (world.answers[synced].protocol_type, world.answers[synced].protocol_name) == ("consumer", "range")
    assert {key.kind for key in world.timers} == {TimerKind.SESSION}
    world.pass_time(SESSION_MS - 1)
    assert (len(world.group.members), world.group.is_empty) == (2, False)
    world.pass_time(1)
    assert (len(world.group.members), world.group.is_empty) == (0, True)


def test_each_member_has_a_session_after_the_rebalance() -> None:
    world = World()
    members = world.stable("a", "b")
    world.pass_time(SESSION_MS - 1)
    assert world.refusal("heartbeat", members["a"]) is None
    world.pass_time(1)
    assert [each.member_id for each in world.group.members] == [members["a"].member_id]
    world.pass_time(SESSION_MS - 2)
    assert len(world.group.members) == 1
    world.pass_time(1)
    assert world.group.state is GroupState.EMPTY


@pytest.mark.parametrize("kind", list(TimerKind))
def test_a_timer_that_was_cancelled_too_late_is_harmless(kind: TimerKind) -> None:
    world = World()
    members = world.stable("a", "b")
    for member_id in ("", "gone", members["b"].member_id):
        world.group.timer_fired(TimerKey(kind, member_id), world.now_ms)
        world.settle()
    assert world.group.state is GroupState.STABLE
    assert len(world.group.members) == 2
    world.group.close()
    world.settle()
    for member_id in ("", members["b"].member_id):
        world.group.timer_fired(TimerKey(kind, member_id), world.now_ms + SESSION_MS)
        world.settle()
    assert (world.group.state, world.timers) == (GroupState.DEAD, {})


@pytest.mark.parametrize(("delay_ms", "expected_ms"), [(-5, 0), (-1, 0), (0, 0), (1, 1)])
def test_a_timer_of_a_client_that_asks_for_a_negative_time_is_due_at_once(delay_ms: int, expected_ms: int) -> None:
    effects = Effects()
    effects.set_timer(TimerKind.JOIN, delay_ms)
    assert effects.take() == [SetTimer(TimerKey(TimerKind.JOIN), expected_ms)]
