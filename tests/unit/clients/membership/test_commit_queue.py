"""Tests of the commit queue.

Offsets are committed in the order of the calls.
"""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from millrace.clients.membership.commit_queue import AutoCommit, Commit, CommitQueue
from millrace.clients.model import ConsumerGroupMetadata, OffsetAndMetadata, TopicPartition
from millrace.errors import BrokerUnavailableError, IllegalGenerationError, UnknownTopicOrPartitionError

PARTITION = TopicPartition("t", 0)
WHO = ConsumerGroupMetadata(group_id="g")


def _commit(offset: int, deadline: float | None = None) -> Commit:
    return Commit(offsets={PARTITION: OffsetAndMetadata(offset=offset)}, who=WHO, deadline=deadline)


def test_only_one_commit_is_in_flight_at_a_time() -> None:
    first, second = _commit(1), _commit(2)
    queue, sent = CommitQueue().submitted(first).submitted(second).request(0.0)
    assert sent is first
    assert queue.request(0.0)[1] is None
    queue, is_over = queue.answered(None, 0.0)
    assert is_over
    queue, sent = queue.request(0.0)
    assert sent is second
    assert queue.answered(None, 0.0)[0].is_idle


def test_only_commits_with_a_waiting_caller_are_retried() -> None:
    queue, _ = CommitQueue().submitted(_commit(1)).request(0.0)
    assert queue.answered(BrokerUnavailableError("x"), 0.0)[1]
    waiting = _commit(1, deadline=10.0)
    queue, _ = CommitQueue().submitted(waiting).request(0.0)
    queue, is_over = queue.answered(BrokerUnavailableError("x"), 0.0)
    assert not is_over
    assert queue.request(0.05)[1] is None
    assert queue.request(0.1)[1] is waiting


def test_a_commit_with_a_permanent_error_is_not_retried() -> None:
    for error in (IllegalGenerationError("x"), UnknownTopicOrPartitionError("x")):
        queue, _ = CommitQueue().submitted(_commit(1, deadline=10.0)).request(0.0)
        assert queue.answered(error, 0.0)[1]


def test_retries_of_a_commit_end_at_its_deadline() -> None:
    queue, _ = CommitQueue().submitted(_commit(1, deadline=1.0)).request(0.95)
    assert queue.answered(BrokerUnavailableError("x"), 0.95)[1]


def test_an_abandoned_commit_is_not_sent() -> None:
    first, second = _commit(1, 10.0), _commit(2, 10.0)
    queue, _ = CommitQueue().submitted(first).submitted(second).request(0.0)
    queue = queue.withdrawn(second)
    assert queue.answered(None, 0.0)[0].is_idle


@given(st.lists(st.sampled_from(["submit", "wait", "send", "ok", "lost", "landed"]), max_size=60))
def test_committed_offsets_never_regress(steps: list[str]) -> None:
    # Requests and answers may be lost. The coordinator still sees growing offsets.
    queue, now, asked, committed = CommitQueue(), 0.0, 0, 0
    for step in steps:
        now += 0.3
        if step in ("submit", "wait"):
            asked += 1
            queue = queue.submitted(_commit(asked, now + 5.0 if step == "wait" else None))
        elif step == "send":
            queue, _ = queue.request(now)
        elif queue.under_way is not None:
            offset = queue.under_way.offsets[PARTITION].offset
            if step != "lost":
                assert offset >= committed
                committed = offset
            queue, _ = queue.answered(None if step == "ok" else BrokerUnavailableError("x"), now)


def test_automatic_commits_keep_their_distance() -> None:
    auto = AutoCommit(interval_s=5.0, due_at=5.0)
    auto, is_due = auto.polled(4.9)
    assert not is_due
    auto, is_due = auto.polled(5.1)
    assert is_due
    assert not auto.polled(10.0)[1]
    assert auto.polled(10.2)[1]
