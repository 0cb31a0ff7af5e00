"""Tests of the lifetime of groups.

The tests cover groups that end, that are loaded from the log, or that change their kind.
"""

from __future__ import annotations

from millrace.errors import (
    CoordinatorNotAvailableError,
    InconsistentGroupProtocolError,
    RebalanceInProgressError,
)
from millrace_broker.groups.classic_group import ClassicGroup
from millrace_broker.groups.effects import StoredGroup
from millrace_broker.groups.requests import MemberIdGiven
from millrace_broker.groups.states import GroupState

from .world import NOBODY, SESSION_MS, SETTINGS, World, restored, subscription


def test_a_closed_group_sends_everybody_away() -> None:
    world = World()
    members = world.stable("a", "b")
    call = world.join(members["a"].member_id)
    world.group.close()
    world.settle()
    assert isinstance(world.answers[call], CoordinatorNotAvailableError)
    assert not world.timers
    for request in ("heartbeat", "leave", "check_commit"):
        assert world.refusal(request, members["a"]) is CoordinatorNotAvailableError
    assert world.refusal("check_commit", NOBODY) is CoordinatorNotAvailableError
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


def test_a_group_that_was_read_continues_where_it_was() -> None:
    world = World()
    members = world.stable("a", "b")
    stored = world.group.record_content()
    again = World(SETTINGS, ClassicGroup.restore("g", SETTINGS, stored, 1_000_000))
    assert again.group.state is GroupState.STABLE
    assert again.group.members.leader == world.group.members.leader
    assert [member.subscription for member in stored.members] == [b"r", b"r"]
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
