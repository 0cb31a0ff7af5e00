"""Sets of offsets as sorted, disjoint intervals, and counts of overlapping intervals."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator

Interval = tuple[int, int]
"""Offsets from the first (inclusive) to the second (exclusive)."""


def normalized(intervals: Iterable[Interval]) -> list[Interval]:
    """Return the union of intervals as sorted, disjoint intervals."""
    merged: list[Interval] = []
    for start, end in sorted(interval for interval in intervals if interval[0] < interval[1]):
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        else:
            merged.append((start, end))
    return merged


def size(intervals: Iterable[Interval]) -> int:
    """Return the number of offsets in disjoint intervals."""
    return sum(end - start for start, end in intervals)


def counted(intervals: Iterable[Interval]) -> list[tuple[int, int, int]]:
    """Return intervals with the number of occurrences of their offsets, without those that never occur."""
    return [(start, end, first) for start, end, first, _ in compared(intervals, ())]


def compared(ones: Iterable[Interval], others: Iterable[Interval]) -> Iterator[tuple[int, int, int, int]]:
    """Yield intervals whose offsets occur equally often in each input, with both counts."""
    steps: dict[int, list[int]] = defaultdict(lambda: [0, 0])
    for side, intervals in enumerate((ones, others)):
        for start, end in intervals:
            if start < end:
                steps[start][side] += 1
                steps[end][side] -= 1
    depth, since = [0, 0], 0
    for offset in sorted(steps):
        if any(depth) and steps[offset] != [0, 0]:
            yield since, offset, depth[0], depth[1]
        if steps[offset] != [0, 0]:
            since = offset
        depth = [depth[0] + steps[offset][0], depth[1] + steps[offset][1]]


def intersection(ones: Iterable[Interval], others: Iterable[Interval]) -> list[Interval]:
    """Return the offsets in both sets."""
    found = compared(normalized(ones), normalized(others))
    return normalized((start, end) for start, end, first, second in found if first and second)


def difference(ones: Iterable[Interval], others: Iterable[Interval]) -> list[Interval]:
    """Return the offsets in the first set but not in the second."""
    found = compared(normalized(ones), normalized(others))
    return normalized((start, end) for start, end, first, second in found if first and not second)


def text(intervals: Iterable[Interval], most: int = 5) -> str:
    """Format intervals, such as ``3..7, 12``; at most the first ``most`` of them."""
    parts = [str(start) if end == start + 1 else f"{start}..{end - 1}" for start, end in intervals]
    return ", ".join(parts[:most]) + (f" and {len(parts) - most} more" if len(parts) > most else "")
