"""Tests of a group member's state machine, event by event."""

from __future__ import annotations

import pytest

from millrace.clients.membership.requests import Heartbeat, Join, Joined, Leave, Prepare, Sync
from millrace.clients.membership.state import NO_GENERATION, Membership, Phase, Timing
from millrace.clients.model import TopicPartition
from millrace.errors import (
    BrokerUnavailableError,
    FencedInstanceIdError,
    IllegalGenerationError,
    InconsistentGroupProtocolError,
    MemberIdRequiredError,
    MillraceError,
    RebalanceInProgressError,
    UnknownMemberError,
)

TIMING = Timing(session_timeout_s=45, heartbeat_interval_s=3, max_poll_interval_s=300)
A, B, C = (TopicPartition("t", number) for number in range(3))


def _joined(state: Membership, owned: set[TopicPartition], *, generation: int = 1, now: float = 0.0) -> Membership:
    """Take a member through a complete join."""
    state, prepare = state.polled(now)
    if prepare is not None:
        state = state.prepared(prepare)
    state, join = state.request(now)
    assert isinstance(join, Join)
    answer = Joined(generation=generation, member_id="m", protocol="range", is_leader=False)
    state = state.join_answered(join, answer, now)
    state, sync = state.request(now)
    assert isinstance(sync, Sync)
    state = state.sync_answered(sync, frozenset(owned), now)
    assert state.changed is not None
    return state.took_changes()


def _member(**options: object) -> Membership:
    return Membership(timing=TIMING, topics=frozenset({"t"}), **options)  # type: ignore[arg-type]


def test_a_member_joins_with_the_id_that_it_is_given() -> None:
    state, prepare = _member().polled(0.0)
    assert prepare is None
    state, join = state.request(0.0)
    assert isinstance(join, Join)
    assert (join.member_id, join.generation) == ("", NO_GENERATION)
    state = state.failed(join, MemberIdRequiredError("x"), 0.0, member_id="m-1")
    state, again = state.request(0.0)
    assert isinstance(again, Join)
    assert again.member_id == "m-1"


def test_nothing_is_asked_for_before_the_first_poll() -> None:
    assert _member().request(1000.0)[1] is None


def test_an_eager_member_gives_up_everything_before_it_joins_again() -> None:
    state = _joined(_member(), {A, B}).asked_to_rejoin("because")
    state, prepare = state.polled(1.0)
    assert prepare == Prepare(revoked=frozenset({A, B}))
    assert state.can_commit
    assert not isinstance(state.request(1.0)[1], Join)
    state = state.prepared(prepare)
    join = state.request(1.0)[1]
    assert isinstance(join, Join)
    assert (join.owned, join.generation) == (frozenset(), 1)
    assert not state.can_commit


def test_a_cooperative_member_keeps_its_partitions_and_gives_up_what_it_no_longer_has() -> None:
    state = _joined(_member(is_cooperative=True), {A, B}).asked_to_rejoin("because")
    state, prepare = state.polled(1.0)
    assert prepare is None
    state, join = state.request(1.0)
    assert isinstance(join, Join)
    assert join.owned == {A, B}
    state = state.join_answered(join, Joined(generation=2, member_id="m", protocol="c", is_leader=False), 1.0)
    state, sync = state.request(1.0)
    assert isinstance(sync, Sync)
    state = state.sync_answered(sync, frozenset({A, C}), 1.0)
    assert state.changed is not None
    assert (state.changed.revoked, state.changed.added) == ({B}, {C})
    # The member joins again, so that the other members get the partitions that it revoked.
    assert state.took_changes().polled(1.0)[0].phase is Phase.JOINING


def test_an_unsubscribed_topic_is_revoked_before_joining() -> None:
    other = TopicPartition("u", 0)
    state = _joined(_member(is_cooperative=True), {A, other}).subscribed(frozenset({"t"}))
    state = state.subscribed(frozenset({"u"}))
    state, prepare = state.polled(1.0)
    assert prepare == Prepare(revoked=frozenset({A}))
    assert state.prepared(prepare).owned == {other}


@pytest.mark.parametrize(("error", "keeps_id"), [(UnknownMemberError("x"), False), (IllegalGenerationError("x"), True)])
def test_a_member_that_was_thrown_out_loses_its_partitions(error: MillraceError, keeps_id: bool) -> None:
    state = _joined(_member(), {A})
    state, beat = state.request(3.0)
    assert isinstance(beat, Heartbeat)
    state = state.failed(beat, error, 3.0)
    assert (state.generation, bool(state.member_id)) == (NO_GENERATION, keeps_id)
    state, prepare = state.polled(4.0)
    assert prepare == Prepare(lost=frozenset({A}))
    assert state.prepared(prepare).phase is Phase.JOINING


def test_partitions_lost_during_a_revocation_are_reported_too() -> None:
    other = TopicPartition("u", 0)
    state = _joined(_member(is_cooperative=True), {A, other}).subscribed(frozenset({"u"}))
    state, prepare = state.polled(3.0)
    assert prepare is not None
    state, beat = state.request(3.0)
    assert isinstance(beat, Heartbeat)
    state = state.failed(beat, UnknownMemberError("x"), 3.0).prepared(prepare)
    assert state.phase is Phase.PREPARING
    state, more = state.polled(3.0)
    assert more == Prepare(lost=frozenset({other}))
    assert state.prepared(more).phase is Phase.JOINING


def test_a_heartbeat_is_due_every_interval_and_tells_of_a_rebalance() -> None:
    state = _joined(_member(), {A})
    assert state.request(2.9)[1] is None
    assert state.next_request_at() == 3.0
    state, beat = state.request(3.0)
    assert isinstance(beat, Heartbeat)
    assert state.request(3.1)[1] is None
    state = state.failed(beat, RebalanceInProgressError("x"), 3.1)
    assert state.is_rebalancing
    assert state.polled(3.2)[1] == Prepare(revoked=frozenset({A}))


def test_a_member_that_is_not_polled_leaves_and_comes_back_when_polled() -> None:
    state = _joined(_member(), {A})
    state, leave = state.request(300.1)
    assert isinstance(leave, Leave)
    assert not state.has_group
    assert state.request(400.0)[1] is None
    state, prepare = state.polled(401.0)
    assert prepare == Prepare(lost=frozenset({A}))


def test_a_static_member_that_is_not_polled_falls_silent() -> None:
    state, request = _joined(_member(instance_id="i"), {A}).request(300.1)
    assert request is None
    assert not state.has_group


def test_a_fenced_member_does_not_come_back() -> None:
    state = _joined(_member(instance_id="i"), {A})
    state, beat = state.request(3.0)
    assert isinstance(beat, Heartbeat)
    state = state.failed(beat, FencedInstanceIdError("another one"), 3.0)
    assert isinstance(state.failure, FencedInstanceIdError)
    assert isinstance(state.took_failure().failure, FencedInstanceIdError)
    assert state.polled(4.0) == (state.polled(4.0)[0], None)


def test_a_join_with_a_permanent_error_is_retried_after_the_poll_that_raised_it() -> None:
    state, _ = _member().polled(0.0)
    state, join = state.request(0.0)
    assert isinstance(join, Join)
    state = state.failed(join, InconsistentGroupProtocolError("x"), 0.0)
    assert state.request(9.0)[1] is None
    assert isinstance(state.took_failure().request(9.0)[1], Join)


def test_retriable_errors_are_retried_with_growing_backoff() -> None:
    state, _ = _member().polled(0.0)
    now, waits = 0.0, []
    for _attempt in range(6):
        state, join = state.request(now)
        assert isinstance(join, Join)
        state = state.failed(join, BrokerUnavailableError("x"), now)
        assert state.request(now)[1] is None
        waits.append(state.next_request_at() - now)
        now = state.next_request_at()
    assert waits == pytest.approx([0.1, 0.2, 0.4, 0.8, 1.0, 1.0])


def test_late_answers_of_another_generation_change_nothing() -> None:
    state = _joined(_member(), {A})
    old = Heartbeat(member_id="m", generation=0)
    assert state.failed(old, UnknownMemberError("x"), 1.0) == state
    assert state.heartbeat_answered(old, 9.0) == state
    assert state.commit_failed(IllegalGenerationError("x"), 0, "m") == state


def test_a_refused_commit_tells_that_the_group_went_on() -> None:
    state = _joined(_member(), {A})
    assert not state.commit_failed(UnknownMemberError("x"), 1, "m").has_group
    assert state.commit_failed(RebalanceInProgressError("x"), 1, "m").is_rebalancing


def test_topics_that_change_during_a_rebalance_make_another() -> None:
    state, _ = _member().polled(0.0)
    state, join = state.request(0.0)
    assert isinstance(join, Join)
    state = state.subscribed(frozenset({"t", "u"}))
    state = state.join_answered(join, Joined(generation=1, member_id="m", protocol="r", is_leader=False), 0.0)
    state, sync = state.request(0.0)
    assert isinstance(sync, Sync)
    state = state.sync_answered(sync, frozenset({A}), 0.0)
    assert state.phase is Phase.STABLE
    assert state.is_rebalancing
