"""Tests of a log's segment list, which stays sorted by base offset."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace_broker.log import OsFiles
from millrace_broker.log.open_segments import OpenSegments
from millrace_broker.log.segment import Segment
from millrace_broker.log.segment_list import SegmentList, floor


def segment(base_offset: int) -> Segment:
    return Segment(
        Path("orders-0"),
        base_offset,
        size_bytes=0,
        index_interval_bytes=4096,
        files=OsFiles(),
        open_segments=OpenSegments(),
    )


def bases(segments: SegmentList) -> list[int]:
    return [each.base_offset for each in segments.current]


@given(st.sets(st.integers(0, 50), min_size=1), st.integers(0, 60))
def test_floor_is_the_last_segment_that_begins_at_or_before_an_offset(found: set[int], offset: int) -> None:
    segments = [segment(each) for each in sorted(found)]
    before = [number for number, each in enumerate(segments) if each.base_offset <= offset]
    assert floor(segments, offset) == (before[-1] if before else 0)


def test_an_offset_before_all_segments_is_looked_for_in_the_first() -> None:
    assert floor([segment(10), segment(20)], 9) == 0


def test_readers_keep_the_segments_that_they_took() -> None:
    segments = SegmentList([segment(0), segment(10)])
    taken = segments.current
    segments.append(segment(20))
    assert [each.base_offset for each in taken] == [0, 10]
    assert bases(segments) == [0, 10, 20]


def test_segments_are_dropped_at_either_end() -> None:
    segments = SegmentList([segment(each) for each in (0, 10, 20, 30)])
    assert [each.base_offset for each in segments.drop_first(1)] == [0]
    assert [each.base_offset for each in segments.drop_after(2)] == [30]
    assert bases(segments) == [10, 20]


def test_cleaned_segment_takes_the_place_of_consecutive_ones() -> None:
    segments = SegmentList([segment(each) for each in (0, 10, 20, 30)])
    segments.replace(segments.current[1:3], segment(10))
    assert bases(segments) == [0, 10, 30]


@pytest.mark.parametrize(
    "change",
    [
        lambda segments: segments.append(segment(10)),
        lambda segments: segments.drop_first(2),
        lambda segments: segments.drop_after(0),
        lambda segments: segments.replace(segments.current[1:], segment(0)),
    ],
)
def test_change_that_would_break_the_order_is_refused(change) -> None:  # type: ignore[no-untyped-def]
    segments = SegmentList([segment(0), segment(10)])
    with pytest.raises(AssertionError):
        change(segments)
    assert bases(segments) == [0, 10]
