"""Tests of the cleaner's decisions.

The tests cover the dirty ratio, the next log, grouped segments and the throttle.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

from millrace.config.topic import TopicConfig
from millrace_broker.log.cleaning.cleaner_manager import CleanableRange, cleanable_range, dirtiest
from millrace_broker.log.cleaning.grouping import SegmentSizes, group
from millrace_broker.log.throttle import Throttle


@dataclass
class Facts:
    base_offset: int
    size_bytes: int
    first_ms: int = 0
    largest_ms: int = 0

    def largest_time_ms(self) -> int:
        return self.largest_ms

    def first_time_ms(self) -> int:
        return self.first_ms


SEGMENTS = [Facts(10, 100, 1000, 1900), Facts(20, 200, 2000, 2900), Facts(30, 300, 3000, 3900), Facts(40, 50, 4000)]


def range_of(checkpoint: int | None = None, options: dict[str, Any] | None = None, **changes: int) -> CleanableRange:
    facts = {"log_start_offset": 10, "log_end_offset": 45, "last_stable_offset": 45, "now_ms": 5000} | changes
    config = TopicConfig.load({"cleanup.policy": "compact"} | (options or {}))
    return cleanable_range(SEGMENTS, config=config, checkpoint=checkpoint, **facts)


def test_everything_but_the_active_segment_is_dirty_at_first() -> None:
    found = range_of()
    assert (found.first_dirty_offset, found.first_uncleanable_offset) == (10, 40)
    assert (found.clean_bytes, found.cleanable_bytes, found.ratio) == (0, 600, 1.0)


def test_the_ratio_is_of_bytes_after_the_checkpoint() -> None:
    found = range_of(checkpoint=30)
    assert (found.clean_bytes, found.cleanable_bytes, found.ratio) == (300, 300, 0.5)
    assert not found.is_worth_it(TopicConfig.load({"min.cleanable.dirty.ratio": 0.5}))
    assert found.is_worth_it(TopicConfig.load({"min.cleanable.dirty.ratio": 0.49}))


@pytest.mark.parametrize("checkpoint", [9, 46])
def test_a_checkpoint_outside_the_log_means_that_all_is_dirty(checkpoint: int) -> None:
    found = range_of(checkpoint)
    assert found.had_wrong_checkpoint
    assert found.first_dirty_offset == 10


def test_nothing_from_the_last_stable_offset_on_is_cleaned() -> None:
    found = range_of(last_stable_offset=25)
    assert (found.first_unstable_offset, found.first_uncleanable_offset, found.cleanable_bytes) == (25, 20, 100)


def test_young_segments_wait() -> None:
    found = range_of(options={"min.compaction.lag.ms": 2500})
    assert (found.first_uncleanable_offset, found.cleanable_bytes) == (20, 100)
    assert range_of(options={"min.compaction.lag.ms": 1000}).first_uncleanable_offset == 40


def test_a_log_beyond_the_maximum_compaction_lag_is_cleaned_at_any_ratio() -> None:
    options = {"max.compaction.lag.ms": 1500, "min.cleanable.dirty.ratio": 1.0}
    found = range_of(checkpoint=30, options=options)
    assert found.is_overdue
    assert found.is_worth_it(TopicConfig.load(options))
    assert not range_of(checkpoint=30, options={"max.compaction.lag.ms": 2000}).is_overdue
    assert not range_of(checkpoint=40, options=options).is_worth_it(TopicConfig.load(options))


@pytest.mark.parametrize(("first_ms", "is_overdue"), [(-1, False), (0, False), (1, True), (98, True), (99, False)])
def test_a_log_is_overdue_by_the_time_of_a_dirty_segment(first_ms: int, is_overdue: bool) -> None:
    found = cleanable_range(
        [Facts(10, 100, first_ms), Facts(20, 0)],
        config=TopicConfig.load({"cleanup.policy": "compact", "max.compaction.lag.ms": 1}),
        checkpoint=None,
        log_start_offset=10,
        log_end_offset=20,
        last_stable_offset=20,
        now_ms=100,
    )
    assert found.is_overdue is is_overdue


@pytest.mark.parametrize(("now_ms", "end_offset"), [(2899, 10), (2900, 20), (2901, 20), (3899, 20), (3900, 30)])
def test_a_segment_waits_until_its_newest_record_is_old_enough(now_ms: int, end_offset: int) -> None:
    found = range_of(options={"min.compaction.lag.ms": 1000}, now_ms=now_ms)
    assert found.first_uncleanable_offset == end_offset


@pytest.mark.parametrize(
    ("checkpoint", "first_dirty", "clean_bytes", "cleanable_bytes"),
    [(10, 10, 0, 600), (15, 15, 100, 600), (20, 20, 100, 500), (40, 40, 600, 0), (44, 44, 650, 0), (45, 45, 650, 0)],
)
def test_bytes_are_those_of_whole_segments(
    checkpoint: int, first_dirty: int, clean_bytes: int, cleanable_bytes: int
) -> None:
    found = range_of(checkpoint)
    assert not found.had_wrong_checkpoint
    assert (found.first_dirty_offset, found.clean_bytes, found.cleanable_bytes) == (
        first_dirty,
        clean_bytes,
        cleanable_bytes,
    )
    assert found.ratio == (cleanable_bytes / (clean_bytes + cleanable_bytes))


def test_an_empty_log_has_nothing_to_clean() -> None:
    found = cleanable_range(
        [Facts(0, 0)],
        config=TopicConfig.load({"cleanup.policy": "compact"}),
        checkpoint=None,
        log_start_offset=0,
        log_end_offset=0,
        last_stable_offset=0,
        now_ms=0,
    )
    assert (found.ratio, found.cleanable_bytes) == (0.0, 0)
    assert not found.is_worth_it(TopicConfig.load({"min.cleanable.dirty.ratio": 0}))


def test_the_dirtiest_log_comes_first() -> None:
    config = TopicConfig.load({})
    candidates = [("clean", range_of(40), config), ("dirty", range_of(20), config), ("half", range_of(30), config)]
    chosen = dirtiest(candidates)
    assert chosen is not None
    assert chosen[0] == "dirty"
    assert dirtiest(candidates[:1]) is None


def sizes(*parts: tuple[int, int]) -> list[SegmentSizes]:
    return [SegmentSizes(base, size, size // 10, size // 10) for base, size in parts]


@pytest.mark.parametrize(
    ("segments", "limits", "expected"),
    [
        (sizes((0, 40), (5, 40), (9, 40)), {"segment_bytes": 100}, [(0, 2), (2, 3)]),
        (sizes((0, 40), (5, 40), (9, 20)), {"segment_bytes": 100}, [(0, 3)]),
        (sizes((0, 200), (5, 40)), {"segment_bytes": 100}, [(0, 1), (1, 2)]),
        (sizes((0, 40), (5, 40), (9, 40)), {"index_bytes": 7}, [(0, 1), (1, 2), (2, 3)]),
        (sizes((0, 40), (5, 40), (9, 40)), {"index_bytes": 8}, [(0, 2), (2, 3)]),
        ([SegmentSizes(0, 1, 4, 0), SegmentSizes(5, 1, 4, 0)], {"index_bytes": 7}, [(0, 1), (1, 2)]),
        ([SegmentSizes(0, 1, 0, 4), SegmentSizes(5, 1, 0, 4)], {"index_bytes": 7}, [(0, 1), (1, 2)]),
        ([SegmentSizes(0, 1, 4, 0), SegmentSizes(5, 1, 0, 4)], {"index_bytes": 7}, [(0, 2)]),
        (sizes((0, 40), (5, 40), (2**31, 40)), {}, [(0, 2), (2, 3)]),
        (sizes((0, 40), (5, 40), (2**31 + 1, 40)), {}, [(0, 1), (1, 2), (2, 3)]),
        (sizes((0, 40), (2**31, 40)), {}, [(0, 1), (1, 2)]),
        (sizes((0, 40), (2**31 - 50, 40)), {"end_offset": 2**31}, [(0, 2)]),
        (sizes((0, 40), (2**31, 0)), {}, [(0, 2)]),
        ([], {}, []),
    ],
)
def test_segments_are_grouped_within_the_limits_of_one(
    segments: list[SegmentSizes], limits: dict[str, int], expected: list[tuple[int, int]]
) -> None:
    end_offset = segments[-1].base_offset + 10 if segments else 0
    all_limits = {"segment_bytes": 10**6, "index_bytes": 10**6, "end_offset": end_offset} | limits
    assert group(segments, **all_limits) == expected


def test_a_throttle_lets_no_more_through_than_its_rate() -> None:
    now = 100.0

    def wait(seconds: float) -> None:
        nonlocal now
        now += seconds

    throttle = Throttle(1000.0, lambda: now, wait)
    for _ in range(50):
        throttle.use(100)
    assert 4.8 <= now - 100.0 <= 5.0
    now += 60
    before = now
    assert [throttle.use(50), throttle.use(40)] == [0, 0]
    assert now == before, "a pause gives no credit, except for a little at once"
    throttle.use(1000)
    assert now - before > 0.9
