"""Tests of the recent end of a log, which small appends extend."""

from __future__ import annotations

import pytest

from millrace_broker.log.recent_end import NOTHING_RECENT

MIB = 2**20


def test_nothing_is_recent_at_first() -> None:
    assert not NOTHING_RECENT.holds(0, 1.0)


def test_small_appends_add_up_until_they_are_too_much() -> None:
    recent = NOTHING_RECENT.grown(100, 400_000, 1.0).grown(103, 400_000, 2.0)
    assert recent.holds(100, 3.0)
    assert not recent.holds(99, 3.0)
    recent = recent.grown(107, 400_000, 3.0)
    assert not recent.holds(106, 3.0)
    assert recent.holds(107, 3.0)


def test_a_large_append_is_not_recent_and_what_follows_it_is() -> None:
    recent = NOTHING_RECENT.grown(0, 10_000_000, 1.0)
    assert not recent.holds(0, 1.0)
    assert recent.grown(5, 100, 1.0).holds(5, 1.0)


def test_old_records_may_have_left_memory() -> None:
    recent = NOTHING_RECENT.grown(0, 100, 1.0)
    assert recent.holds(0, 11.0)
    assert not recent.holds(0, 11.5)
    assert not recent.grown(1, 100, 11.5).holds(0, 11.5)


@pytest.mark.parametrize(("size_bytes", "holds"), [(MIB - 1, True), (MIB, True), (MIB + 1, False)])
def test_the_limit_of_bytes_is_inclusive(size_bytes: int, holds: bool) -> None:
    assert NOTHING_RECENT.grown(5, size_bytes, 1.0).holds(5, 1.0) is holds
    grown = NOTHING_RECENT.grown(5, 100, 1.0).grown(6, size_bytes - 100, 1.0)
    assert grown.holds(5, 1.0) is holds
    assert grown.holds(6, 1.0)


def test_the_limit_of_age_is_inclusive_and_counts_from_the_first_append() -> None:
    recent = NOTHING_RECENT.grown(5, 100, 1.0)
    assert recent.grown(6, 100, 11.0).holds(5, 11.0)
    assert recent.grown(6, 100, 11.0).start_offset == 5
    assert recent.grown(6, 100, 11.01).start_offset == 6
