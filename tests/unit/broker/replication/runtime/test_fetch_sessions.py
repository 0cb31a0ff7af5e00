"""Tests of followers' fetch sessions.

Leader and follower agree on the partitions.
"""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.errors import FetchSessionIdNotFoundError, InvalidFetchSessionEpochError
from millrace_broker.replication.core import FetchFrom, FetchSession
from millrace_broker.replication.runtime.fetch_sessions import TOLD_NOTHING, FetchSessions, FollowerFetch

Key = tuple[str, int]


def fetch(offset: int) -> FollowerFetch:
    return FollowerFetch(topic_id=b"", offset=offset, leader_epoch=0, last_epoch=None, log_start_offset=0, max_bytes=1)


def test_a_request_that_is_not_the_next_is_refused() -> None:
    sessions = FetchSessions()
    session = sessions.of_request(0, 0, follower=2)
    assert sessions.of_request(session.id, 1, follower=2) is session
    with pytest.raises(InvalidFetchSessionEpochError):
        sessions.of_request(session.id, 1, follower=2)
    with pytest.raises(FetchSessionIdNotFoundError):
        sessions.of_request(session.id, 2, follower=3)
    assert sessions.of_request(session.id, 0, follower=2) is not session
    with pytest.raises(FetchSessionIdNotFoundError):
        sessions.of_request(session.id, 2, follower=2)
    assert len(sessions) == 1


def test_the_session_that_was_used_longest_ago_goes_first() -> None:
    sessions = FetchSessions(2)
    first, second = (sessions.of_request(0, 0, follower=each) for each in (1, 2))
    sessions.of_request(first.id, 1, follower=1)
    sessions.of_request(0, 0, follower=3)
    assert sessions.of_request(first.id, 2, follower=1) is first
    with pytest.raises(FetchSessionIdNotFoundError):
        sessions.of_request(second.id, 1, follower=2)


def test_a_recreated_topic_gets_all_data_again() -> None:
    session = FetchSessions().of_request(0, 0, follower=2)
    session.take({("t", 0): fetch(1)}, [])
    session.fetches["t", 0].told = (5, 0)
    session.take({("t", 0): fetch(2)}, [])
    assert session.fetches["t", 0].told == (5, 0)
    other = fetch(0)
    other.topic_id = b"another"
    session.take({("t", 0): other}, [])
    assert session.fetches["t", 0].told == TOLD_NOTHING


def test_only_changed_partitions_have_a_turn_and_served_ones_wait() -> None:
    sessions = FetchSessions()
    session = sessions.of_request(0, 0, follower=2)
    keys = [("t", number) for number in range(4)]
    session.take({key: fetch(0) for key in keys}, [])
    assert list(session.stirred) == keys
    for key in keys[:3]:
        session.settle(key)
    assert list(session.stirred) == keys[3:]
    sessions.stir([2], keys[1])
    sessions.stir([3], keys[0])
    sessions.stir([2], ("t", 9))
    assert list(session.stirred) == [keys[3], keys[1]]
    session.to_the_end(keys[3])
    session.take({keys[3]: fetch(5)}, [])
    assert list(session.stirred) == [keys[1], keys[3]]
    session.take({}, [keys[1]])
    assert list(session.stirred) == [keys[3]]
    session.stir_all()
    assert sorted(session.stirred) == [keys[0], keys[2], keys[3]]


def test_an_ended_session_gets_no_notices() -> None:
    sessions = FetchSessions(1)
    first = sessions.of_request(0, 0, follower=2)
    first.take({("t", 0): fetch(0)}, [])
    first.settle(("t", 0))
    sessions.of_request(0, 0, follower=3)
    sessions.stir([2], ("t", 0))
    assert not first.stirred


@given(
    st.lists(
        st.tuples(st.dictionaries(st.tuples(st.just("t"), st.integers(0, 4)), st.integers(0, 3)), st.booleans()),
        max_size=20,
    )
)
def test_both_sides_mean_the_same_partitions(rounds: list[tuple[dict[Key, int], bool]]) -> None:
    """Lose some answers. After each request the leader's side has the partitions that the follower wants."""
    sessions, own = FetchSessions(), FetchSession[Key, FetchFrom]()
    for wanted, is_lost in rounds:
        questions = {
            key: FetchFrom(leader_epoch=0, offset=offset, last_epoch=None, log_start_offset=0)
            for key, offset in wanted.items()
        }
        request = own.request(questions)
        session = sessions.of_request(request.session_id, request.epoch, follower=2)
        session.take({key: fetch(each.offset) for key, each in request.fetches.items()}, list(request.forgotten))
        assert {key: each.offset for key, each in session.fetches.items()} == wanted
        if is_lost:
            own.failed(is_session_lost=False)
        else:
            own.answered(session.id)
