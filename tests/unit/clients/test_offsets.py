"""Tests of the times of ListOffsets."""

from datetime import UTC, datetime, timedelta, timezone

from hypothesis import given
from hypothesis import strategies as st

from millrace.clients.offsets import wire_time

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@given(st.integers(0, 10**16), st.sampled_from([UTC, timezone(timedelta(hours=5))]))
def test_a_time_within_a_millisecond_means_the_next_one(microseconds: int, zone: timezone) -> None:
    when = (EPOCH + timedelta(microseconds=microseconds)).astimezone(zone)
    assert wire_time(when) == -(-microseconds // 1000)


def test_times_before_1970_mean_its_begin() -> None:
    assert wire_time(EPOCH - timedelta(days=1)) == wire_time(EPOCH - timedelta(microseconds=1)) == 0
