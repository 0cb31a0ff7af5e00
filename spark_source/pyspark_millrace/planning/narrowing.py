"""Offset ranges narrowed by a filter before any record is read.

Conditions on topic, partition and offset need no broker. Conditions on time use the brokers' time indexes: all records
before the first record at or after a time are earlier than that time. The converse does not hold, because records may
arrive late. So an upper time limit excludes no offsets, and tasks skip batches by their statistics instead. Few matches
are expected after that limit, so splits can be larger there.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark_millrace.filters.row_filter import RowFilter
    from pyspark_millrace.partition_key import PartitionKey
    from pyspark_millrace.planning.offsets import OffsetRange

FirstOffsetsFrom = Callable[[Mapping["PartitionKey", int]], Mapping["PartitionKey", int | None]]
"""Looks up the first record at or after a time in ms in each partition; None if there is none."""


def within_offsets(ranges: Sequence[OffsetRange], row_filter: RowFilter | None) -> list[OffsetRange]:
    """Return the parts of ranges that can match by topic, partition and offset."""
    if row_filter is None:
        return list(ranges)
    narrowed = []
    for each in ranges:
        if each.start > each.end:  # records were truncated, which must be reported
            narrowed.append(each)
            continue
        low, high = row_filter.offset_limits(each.key)
        start = each.start if low is None else max(each.start, low)
        end = each.end if high is None else min(each.end, high + 1)
        if start < end and row_filter.covers(each.key, start, end):
            narrowed.append(replace(each, start=start, end=end))
    return narrowed


def within_times(
    ranges: Sequence[OffsetRange], row_filter: RowFilter | None, first_offsets_from: FirstOffsetsFrom
) -> tuple[list[OffsetRange], list[OffsetRange]]:
    """Return the parts of ranges from the earliest matching time on, in two lists.

    The second list starts after the first record later than the latest matching time: only late records match there.
    """
    if row_filter is None:
        return list(ranges), []
    limits = {each.key: row_filter.time_limits_ms(each.key) for each in ranges}
    firsts = first_offsets_from({key: low for key, (low, _) in limits.items() if low is not None and low > 0})
    lasts = first_offsets_from({key: high + 1 for key, (_, high) in limits.items() if high is not None and high >= 0})
    timely, late = [], []
    for each in ranges:
        first, last = firsts.get(each.key, each.start), lasts.get(each.key)
        start = each.end if first is None else max(each.start, first)
        middle = each.end if last is None else min(max(start, last), each.end)
        if start < middle:
            timely.append(replace(each, start=start, end=middle))
        if middle < each.end:
            late.append(replace(each, start=middle))
    return timely, late
