"""Tests of the share sessions of members of share groups."""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

import pytest

from millrace.errors import (
    InvalidShareSessionEpochError,
    ShareSessionLimitReachedError,
    ShareSessionNotFoundError,
)
from millrace_broker.api import ClientAddress
from millrace_broker.kafka_api.share_sessions import (
    ConnectionKey,
    SessionKey,
    SharedPartition,
    ShareSession,
    ShareSessions,
)

A, B = SessionKey("g", "a"), SessionKey("g", "b")
ONE, TWO, THREE = (SharedPartition(UUID(int=1), number) for number in range(3))


def connection(port: int) -> ConnectionKey:
    return ConnectionKey("PLAINTEXT", ClientAddress("127.0.0.1", port))


def begun(sessions: ShareSessions, key: SessionKey = A, port: int = 1, *partitions: SharedPartition) -> ShareSession:
    return sessions.begin(key, connection(port), partitions or (ONE, TWO), lambda _: None)


def test_each_request_advances_the_epoch() -> None:
    sessions = ShareSessions(10)
    begun(sessions)
    assert [sessions.proceed(A, epoch).epoch for epoch in (1, 2)] == [2, 3]
    for epoch in (2, 4):
        with pytest.raises(InvalidShareSessionEpochError, match=f"at epoch 3, not {epoch}"):
            sessions.proceed(A, epoch)


def test_the_largest_epoch_is_followed_by_the_first() -> None:
    sessions = ShareSessions(10)
    begun(sessions).epoch = 2**31 - 1
    assert sessions.proceed(A, 2**31 - 1).epoch == 1


def test_a_member_without_a_session_is_told_so() -> None:
    sessions = ShareSessions(10)
    sessions.end(begun(sessions))
    with pytest.raises(ShareSessionNotFoundError, match="begin one with epoch 0"):
        sessions.proceed(A, 1)
    with pytest.raises(ShareSessionNotFoundError):
        sessions.find(A)


def test_a_session_that_was_replaced_ends_no_other() -> None:
    sessions = ShareSessions(10)
    first = begun(sessions)
    second = begun(sessions)
    sessions.end(first)
    assert sessions.find(A) is second


def test_there_are_not_more_sessions_than_the_limit() -> None:
    sessions = ShareSessions(1)
    first = begun(sessions)
    with pytest.raises(ShareSessionLimitReachedError, match=r"group\.share\.max\.share\.sessions"):
        begun(sessions, B, 2)
    begun(sessions)  # the member's own session gives its place
    sessions.end(sessions.find(A))
    assert begun(sessions, B, 2) is not first
    assert len(sessions) == 1


def test_partitions_are_added_and_forgotten() -> None:
    sessions = ShareSessions(10)
    session = begun(sessions)
    sessions.update(session, [TWO, THREE], [ONE])
    assert sorted(session.partitions) == [TWO, THREE]


def test_each_request_begins_with_another_partition() -> None:
    sessions = ShareSessions(10)
    begun(sessions, A, 1, ONE, TWO, THREE)
    firsts = [sessions.proceed(A, epoch).partitions[0] for epoch in (1, 2, 3)]
    assert sorted(firsts) == [ONE, TWO, THREE]


def test_a_response_has_partitions_with_news() -> None:
    session = begun(ShareSessions(10))
    assert session.has_news(ONE, has_records=False, error_code=0)  # the first response has all of them
    assert not session.has_news(ONE, has_records=False, error_code=0)
    assert session.has_news(ONE, has_records=True, error_code=0)
    assert session.has_news(ONE, has_records=False, error_code=3)
    assert session.has_news(ONE, has_records=False, error_code=0)  # the error is over
    assert not session.has_news(ONE, has_records=False, error_code=0)
    assert session.has_news(THREE, has_records=False, error_code=0)  # was forgotten during the request


def test_the_sessions_of_a_lost_connection_end() -> None:
    sessions, ended = ShareSessions(10), list[Sequence[SharedPartition]]()
    sessions.begin(A, connection(1), [ONE], ended.append)
    sessions.begin(B, connection(2), [TWO], ended.append)
    sessions.connection_closed(connection(3))
    sessions.connection_closed(connection(2))
    sessions.connection_closed(connection(2))
    assert ended == [[TWO]]
    assert sessions.find(A)


def test_a_session_that_began_on_another_connection_outlives_the_first_one() -> None:
    sessions, ended = ShareSessions(10), list[Sequence[SharedPartition]]()
    sessions.begin(A, connection(1), [ONE], ended.append)
    sessions.begin(A, connection(2), [ONE], ended.append)
    sessions.connection_closed(connection(1))
    assert (ended, len(sessions)) == ([], 1)


def test_the_partitions_of_one_session_and_of_all_are_limited(caplog: pytest.LogCaptureFixture) -> None:
    sessions = ShareSessions(10, session_partitions_max=2, partitions_max=3)
    with pytest.raises(ShareSessionLimitReachedError, match="at most 2 partitions"):
        begun(sessions, A, 1, ONE, TWO, THREE)
    session = begun(sessions, A, 1, ONE)
    begun(sessions, B, 2, ONE, TWO)
    sessions.update(session, [TWO], [ONE])
    with pytest.raises(ShareSessionLimitReachedError, match="all have at most 3"):
        sessions.update(session, [ONE], [])
    with pytest.raises(ShareSessionNotFoundError):
        sessions.find(A)
    assert begun(sessions, A, 1, ONE), "the session that ended leaves room"
    assert len(caplog.records) == 1
