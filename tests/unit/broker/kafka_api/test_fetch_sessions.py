"""Tests of fetch sessions (KIP-227).

A request names changes only, and a response has only partitions with changes.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from millrace.errors import FetchSessionIdNotFoundError, FetchSessionTopicIdError, InvalidFetchSessionEpochError
from millrace.kafka_protocol.calls.fetch import (
    EpochEndOffset,
    FetchPartition,
    FetchRequest,
    FetchTopic,
    ForgottenTopic,
    PartitionData,
)
from millrace.kafka_protocol.fields import NIL_UUID
from millrace_broker.kafka_api.fetch_sessions import IDLE_S, ConsumerSessions, FetchedTopic, FetchPlan

_T = FetchedTopic("t", NIL_UUID)


def _plan(sessions: ConsumerSessions, request: FetchRequest, now: float, *, has_topic_ids: bool = False) -> FetchPlan:
    return sessions.plan(request, now, has_topic_ids=has_topic_ids)


def _request(
    offsets: dict[int, int], *, session_id: int = 0, epoch: int = 0, forgotten: tuple[int, ...] = ()
) -> FetchRequest:
    partitions = tuple(
        FetchPartition(partition=number, fetch_offset=offset, partition_max_bytes=100)
        for number, offset in offsets.items()
    )
    return FetchRequest(
        max_wait_ms=0,
        min_bytes=1,
        session_id=session_id,
        session_epoch=epoch,
        topics=(FetchTopic(topic="t", partitions=partitions),) if offsets else (),
        forgotten_topics_data=(ForgottenTopic(topic="t", partitions=forgotten),) if forgotten else (),
    )


def _data(number: int, *, records: bytes = b"", high_watermark: int = 0, error_code: int = 0) -> PartitionData:
    return PartitionData(
        partition_index=number,
        error_code=error_code,
        high_watermark=high_watermark,
        log_start_offset=0,
        aborted_transactions=None,
        records=records,
    )


def _offsets(plan: FetchPlan) -> dict[int, int]:
    return {number: wanted.fetch_offset for (_, number), wanted in plan.partitions.items()}


def test_a_request_of_a_session_names_only_what_has_changed() -> None:
    sessions = ConsumerSessions()
    first = _plan(sessions, _request({0: 5, 1: 6, 2: 7}), 0)
    assert first.session is not None
    assert not first.is_incremental
    session_id = first.session.session_id
    second = _plan(sessions, _request({1: 9, 3: 1}, session_id=session_id, epoch=1, forgotten=(0,)), 1)
    assert second.is_incremental
    assert _offsets(second) == {1: 9, 2: 7, 3: 1}
    assert _offsets(_plan(sessions, _request({}, session_id=session_id, epoch=2), 2)) == {1: 9, 2: 7, 3: 1}


def test_a_response_has_partitions_with_records_errors_or_another_high_watermark() -> None:
    session = _plan(ConsumerSessions(), _request({0: 0, 1: 0}), 0).session
    assert session is not None
    assert session.has_news((_T, 0), _data(0))
    assert not session.has_news((_T, 0), _data(0))
    assert session.has_news((_T, 0), _data(0, high_watermark=4))
    assert session.has_news((_T, 0), _data(0, high_watermark=4, records=b"x"))
    assert not session.has_news((_T, 0), _data(0, high_watermark=4))
    for _ in range(2):
        assert session.has_news((_T, 1), _data(1, error_code=3)), "an error is reported each time"
    assert session.has_news((_T, 1), _data(1)), "the end of the session"


def test_a_diverging_epoch_is_news() -> None:
    session = _plan(ConsumerSessions(), _request({0: 0}), 0).session
    assert session is not None
    session.has_news((_T, 0), _data(0))
    assert session.has_news((_T, 0), replace(_data(0), diverging_epoch=EpochEndOffset(epoch=1, end_offset=2)))


def test_partitions_with_records_are_read_last_the_next_time() -> None:
    sessions = ConsumerSessions()
    session = _plan(sessions, _request({0: 0, 1: 0, 2: 0}), 0).session
    assert session is not None
    session.has_news((_T, 0), _data(0, records=b"x"))
    plan = _plan(sessions, _request({}, session_id=session.session_id, epoch=1), 0)
    assert [number for _, number in plan.partitions] == [1, 2, 0]


def test_a_request_of_a_lost_or_repeated_epoch_is_refused() -> None:
    sessions = ConsumerSessions()
    session = _plan(sessions, _request({0: 0}), 0).session
    assert session is not None
    with pytest.raises(FetchSessionIdNotFoundError):
        _plan(sessions, _request({}, session_id=session.session_id ^ 1, epoch=1), 0)
    with pytest.raises(InvalidFetchSessionEpochError):
        _plan(sessions, _request({}, session_id=session.session_id, epoch=2), 0)
    _plan(sessions, _request({}, session_id=session.session_id, epoch=1), 0)
    with pytest.raises(InvalidFetchSessionEpochError):
        _plan(sessions, _request({}, session_id=session.session_id, epoch=1), 0)


def test_a_session_ends_with_a_new_one_the_final_epoch_or_its_last_partition() -> None:
    sessions = ConsumerSessions()
    for ending in ("new", "final", "empty"):
        session = _plan(sessions, _request({0: 0}), 0).session
        assert session is not None
        if ending == "new":
            _plan(sessions, _request({0: 0}, session_id=session.session_id, epoch=0), 0)
            assert len(sessions) == 1
            _plan(sessions, _request({}, session_id=next(iter(sessions._sessions)), epoch=-1), 0)
        elif ending == "final":
            assert _plan(sessions, _request({0: 0}, session_id=session.session_id, epoch=-1), 0).session is None
        else:
            plan = _plan(sessions, _request({}, session_id=session.session_id, epoch=1, forgotten=(0,)), 0)
            assert plan == ({}, None, False)
        assert len(sessions) == 0


def test_sessions_are_limited_and_idle_ones_give_way(caplog: pytest.LogCaptureFixture) -> None:
    sessions = ConsumerSessions(sessions_max=2)
    first, second = (_plan(sessions, _request({0: 0}), 0).session for _ in range(2))
    assert first is not None
    assert second is not None
    for _ in range(3):
        assert _plan(sessions, _request({0: 0}), IDLE_S - 1).session is None, "clients fetch without a session"
    assert [each.message for each in caplog.records] == [
        "2 fetch sessions are in use, with 2 partitions, and none was idle for 120 s: further clients, and those with "
        "more than 50000 partitions, fetch without a session"
    ]
    _plan(sessions, _request({}, session_id=first.session_id, epoch=1), IDLE_S - 1)
    assert _plan(sessions, _request({0: 0}), IDLE_S).session is not None, "the third session replaces the second one"
    with pytest.raises(FetchSessionIdNotFoundError):
        _plan(sessions, _request({}, session_id=second.session_id, epoch=1), IDLE_S)
    _plan(sessions, _request({}, session_id=first.session_id, epoch=2), IDLE_S)
    assert len(sessions) == 2


def test_a_session_that_grows_beyond_its_limit_ends(caplog: pytest.LogCaptureFixture) -> None:
    sessions = ConsumerSessions(session_partitions_max=3)
    session = _plan(sessions, _request({0: 0, 1: 0}), 0).session
    assert session is not None
    session_id = session.session_id
    assert _plan(sessions, _request({2: 0}, session_id=session_id, epoch=1), 0).session is session
    plan = _plan(sessions, _request({3: 0}, session_id=session_id, epoch=2), 0)
    assert (plan.session, plan.is_incremental, len(plan.partitions)) == (None, False, 4)
    with pytest.raises(FetchSessionIdNotFoundError):
        _plan(sessions, _request({}, session_id=session_id, epoch=3), 0)
    for _ in range(3):
        plan = _plan(sessions, _request({0: 0, 1: 0, 2: 0, 3: 0}), 0)
        assert (plan.session, len(plan.partitions)) == (None, 4)
    assert (len(sessions), len(caplog.records)) == (0, 1)


def test_all_sessions_share_one_limit_of_partitions_and_idle_ones_give_way() -> None:
    sessions = ConsumerSessions(partitions_max=5)
    first = _plan(sessions, _request({0: 0, 1: 0}), 0).session
    second = _plan(sessions, _request({0: 0, 1: 0}), 0).session
    assert first is not None
    assert second is not None
    assert _plan(sessions, _request({0: 0, 1: 0}), 1).session is None
    assert _plan(sessions, _request({}, session_id=first.session_id, epoch=1, forgotten=(0,)), 1).session is first
    assert _plan(sessions, _request({0: 0, 1: 0}), 1).session is not None, "the forgotten partition leaves room"
    grown = _request({2: 0}, session_id=first.session_id, epoch=2)
    assert _plan(sessions, grown, IDLE_S).session is first, "the idle session gives its place"
    with pytest.raises(FetchSessionIdNotFoundError):
        _plan(sessions, _request({}, session_id=second.session_id, epoch=1), IDLE_S)


@pytest.mark.parametrize("begins_with_ids", [False, True])
def test_a_session_has_either_names_or_ids_of_topics(begins_with_ids: bool) -> None:
    sessions = ConsumerSessions()
    session = _plan(sessions, _request({0: 0}), 0, has_topic_ids=begins_with_ids).session
    assert session is not None
    wrong = _request({}, session_id=session.session_id, epoch=1)
    with pytest.raises(FetchSessionTopicIdError):
        _plan(sessions, wrong, 0, has_topic_ids=not begins_with_ids)
    late = _request({}, session_id=session.session_id, epoch=2)
    with pytest.raises(InvalidFetchSessionEpochError):
        _plan(sessions, late, 0, has_topic_ids=not begins_with_ids)
    assert _plan(sessions, wrong, 0, has_topic_ids=begins_with_ids).session is session, "the epoch did not advance"
