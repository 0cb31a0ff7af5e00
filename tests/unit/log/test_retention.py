from __future__ import annotations

from typing import Any

import pytest

from millrace_broker.log.retention import SegmentFacts, count_deletable

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
        ({"retention_ms": 7000}, 1),  # the third is old enough, but the second is in the way
        ({"retention_bytes": 650}, 0),
        ({"retention_bytes": 551}, 0),
        ({"retention_bytes": 550}, 1),
        ({"retention_bytes": 349}, 2),
        ({"retention_bytes": 0}, 4),
        ({"log_start_offset": 9}, 0),
        ({"log_start_offset": 10}, 1),
        ({"log_start_offset": 40}, 3),
        ({"retention_bytes": 0, "high_watermark": 25}, 2),
    ],
)
def test_what_may_go(limits: dict[str, int], count: int) -> None:
    assert count_deletable(SEGMENTS, **(NONE | limits)) == count


def test_an_empty_last_segment_stays() -> None:
    assert count_deletable([SegmentFacts(0, 0, 0, 0)], **(NONE | {"retention_ms": 0, "retention_bytes": 0})) == 0
