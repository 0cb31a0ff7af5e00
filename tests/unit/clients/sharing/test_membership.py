"""Tests of the heartbeats of a share group's member."""

from __future__ import annotations

from millrace.clients.model import TopicPartition
from millrace.clients.sharing.membership import Beat, ShareMembership
from millrace.errors import BrokerUnavailableError, FencedMemberEpochError, GroupMaxSizeReachedError, UnknownMemberError

A = frozenset({TopicPartition("a", 0)})


def _joined() -> ShareMembership:
    state = ShareMembership(member_id="m").subscribed(frozenset({"a"}), 0.0)
    beat = state.request(0.0)
    assert beat == Beat(epoch=0, topics=frozenset({"a"}))
    return state.answered(beat, 3, A, 5.0, 0.0)


def test_a_member_without_topics_says_nothing() -> None:
    assert ShareMembership(member_id="m").request(100.0) is None


def test_topics_are_sent_once_and_after_changes() -> None:
    state = _joined()
    assert state.request(4.9) is None
    beat = state.request(5.0)
    assert beat == Beat(epoch=3, topics=None)
    state = state.answered(beat, 3, None, 5.0, 5.0)
    assert state.assigned == A
    state = state.subscribed(frozenset({"b"}), 6.0)
    assert state.request(6.0) == Beat(epoch=3, topics=frozenset({"b"}))


def test_topics_that_change_during_a_heartbeat_are_sent_with_the_next() -> None:
    state = ShareMembership(member_id="m").subscribed(frozenset({"a"}), 0.0)
    beat = state.request(0.0)
    assert beat is not None
    state = state.subscribed(frozenset({"b"}), 0.1).answered(beat, 1, A, 5.0, 0.2)
    assert state.request(0.2) == Beat(epoch=1, topics=frozenset({"b"}))


def test_a_member_that_is_not_known_joins_again() -> None:
    for error in (UnknownMemberError("x"), FencedMemberEpochError("x")):
        state = _joined().failed(error, 0.1, 7.0)
        assert not state.assigned
        assert state.request(7.0) == Beat(epoch=0, topics=frozenset({"a"}))


def test_retriable_errors_are_retried_and_others_are_raised() -> None:
    state = _joined().failed(BrokerUnavailableError("x"), 0.5, 5.0)
    assert state.request(5.4) is None
    assert state.request(5.5) is not None
    state = state.failed(GroupMaxSizeReachedError("x"), 0.5, 5.5)
    assert state.request(99.0) is None
    assert state.took_failure().request(99.0) is not None
