from __future__ import annotations

from typing import Any

import pytest

from millrace_broker.log.retention import SegmentFacts, count_copied, count_deletable

NOW = 10_000
SEGMENTS = [
    SegmentFacts(0, 10, 100, 1000),
    SegmentFacts(10, 20, 200, 5000),
    SegmentFacts(20, 30, 300, 2000),
    SegmentFacts(30, 40, 50, 9000),
]
NONE: dict[str, Any] = {
    "now_ms": NOW,
    "retention_ms": -1,
    "retention_bytes": -1,
    "log_start_offset": 0,
    "high_watermark": 40,
}


@pytest.mark.parametrize(
    ("limits", "count"),
    [
        ({}, 0),
        ({"retention_ms": 9000}, 0),
        ({"retention_ms": 8999}, 1),
        ({"retention_ms": 4999}, 3),
        ({"retention_ms": 999}, 4),
        ({"retention_ms": 7000}, 1),  # the third segment is old enough, but the second one is not
        ({"retention_bytes": 650}, 0),
        ({"retention_bytes": 551}, 0),
        ({"retention_bytes": 550}, 1),
        ({"retention_bytes": 351}, 1),
        ({"retention_bytes": 350}, 2),
        ({"retention_bytes": 51}, 2),
        ({"retention_bytes": 50}, 3),
        ({"retention_bytes": 1}, 3),
        ({"retention_ms": 0, "now_ms": 1000}, 0),
        ({"retention_ms": 0, "now_ms": 1001}, 1),
        ({"log_start_offset": 11}, 1),
        ({"log_start_offset": 39}, 3),
        ({"log_start_offset": 41}, 3),
        ({"retention_bytes": 0, "high_watermark": 9}, 0),
        ({"retention_bytes": 0, "high_watermark": 10}, 1),
        ({"retention_bytes": 0, "high_watermark": 39}, 3),
        ({"retention_bytes": 0}, 4),
        ({"log_start_offset": 9}, 0),
        ({"log_start_offset": 10}, 1),
        ({"log_start_offset": 40}, 3),
        ({"retention_bytes": 0, "high_watermark": 25}, 2),
    ],
)
def test_retention_counts_the_deletable_segments(limits: dict[str, int], count: int) -> None:
    assert count_deletable(SEGMENTS, **(NONE | limits)) == count


def test_an_empty_last_segment_stays() -> None:
    assert count_deletable([SegmentFacts(0, 0, 0, 0)], **(NONE | {"retention_ms": 0, "retention_bytes": 0})) == 0


def test_a_last_segment_of_one_byte_may_go() -> None:
    limits = NONE | {"retention_ms": 0, "high_watermark": 1}
    assert count_deletable([SegmentFacts(0, 1, 1, 0)], **limits) == 1
    assert count_deletable([SegmentFacts(0, 0, 0, 0), SegmentFacts(0, 1, 1, 0)], **limits) == 2


@pytest.mark.parametrize(
    ("copied", "start", "count"),
    [(9, 0, 0), (10, 0, 1), (11, 0, 1), (0, 9, 0), (0, 10, 1), (20, 10, 2), (10, 20, 2), (40, 0, 3), (0, 40, 3)],
)
def test_segments_copied_or_before_the_start_may_leave_the_disk(copied: int, start: int, count: int) -> None:
    assert count_copied(SEGMENTS, 3, copied_end_offset=copied, log_start_offset=start) == count
