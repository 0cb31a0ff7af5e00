"""Tests of offset resets."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.clients.groups.resets import Bounds, Target, decide, parse_duration, parse_time, read_plans, write_plans
from millrace.clients.model import TopicPartition
from millrace.errors import UsageError

A, B = TopicPartition("a", 0), TopicPartition("b", 3)


def _one(target: Target, number: int = 0, **bounds: int) -> int | None:
    return decide(target, {A: Bounds(**{"start": 10, "end": 100, **bounds})}, number).get(A)


def test_each_target_gives_its_offset() -> None:
    assert _one(Target.EARLIEST) == 10
    assert _one(Target.LATEST) == 100
    assert _one(Target.CURRENT, committed=40) == 40
    assert _one(Target.CURRENT) == 100
    assert _one(Target.OFFSET, 50) == 50
    assert _one(Target.TIME, at_time=60) == 60
    assert _one(Target.TIME) == 100
    assert _one(Target.SHIFT, -5, committed=40) == 35
    assert _one(Target.SHIFT, -5) is None


@given(st.sampled_from(Target), st.integers(-300, 300), st.integers(0, 100), st.integers(0, 100), st.integers(0, 300))
def test_offsets_stay_within_what_there_is(target: Target, number: int, start: int, more: int, committed: int) -> None:
    found = _one(target, number, start=start, end=start + more, committed=committed)
    assert found is not None
    assert start <= found <= start + more


def test_durations_and_times_are_read_in_iso_8601() -> None:
    assert parse_duration("P1DT2H3M4.5S") == timedelta(days=1, hours=2, minutes=3, seconds=4.5)
    assert parse_duration("P2W") == timedelta(weeks=2)
    for wrong in ("", "P", "PT", "1h", "P1H", "P1DT"):
        with pytest.raises(UsageError, match="ISO 8601"):
            parse_duration(wrong)
    assert parse_time("2026-01-02T03:04:05") == datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
    with pytest.raises(UsageError, match="ISO 8601"):
        parse_time("yesterday")


_plans = st.dictionaries(
    st.text(min_size=1, max_size=5),
    st.dictionaries(st.tuples(st.text(min_size=1, max_size=5), st.integers(0, 9)), st.integers(0, 2**62), max_size=4),
    min_size=1,
    max_size=3,
)


@given(_plans)
def test_plans_of_resets_survive_a_round_trip_through_a_file(plans: dict[str, dict[tuple[str, int], int]]) -> None:
    named = {group: {TopicPartition(*key): offset for key, offset in each.items()} for group, each in plans.items()}
    if any(
        "\r" in text or "\n" in text or "\0" in text
        for group in plans
        for text in (group, *(t for t, _ in plans[group]))
    ):
        return
    assert read_plans(write_plans(named), named, "f") == named


def test_malformed_lines_of_a_plan_are_named() -> None:
    with pytest.raises(UsageError, match="f:2: expected topic,partition,offset"):
        read_plans("a,0,1\na,x,1\n", ["g"], "f")
    with pytest.raises(UsageError, match="several groups"):
        read_plans("a,0,1\n", ["g", "h"], "f")
    assert read_plans("g,a,0,1\nz,a,0,5\n", ["g", "h"], "f") == {"g": {A: 1}, "h": {}}
