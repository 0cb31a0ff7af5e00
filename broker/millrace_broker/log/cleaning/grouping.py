"""The groups of segments that are cleaned into one (Kafka's ``groupSegmentsBySize``).

Without groups, segments would become ever smaller.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

_OFFSET_SPAN_MAX: Final = 2**31 - 1


class SegmentSizes(NamedTuple):
    """A segment's sizes for grouping."""

    base_offset: int
    size_bytes: int
    offset_index_bytes: int
    time_index_bytes: int


def group(
    segments: Sequence[SegmentSizes], *, segment_bytes: int, index_bytes: int, end_offset: int
) -> list[tuple[int, int]]:
    """Cut ``segments`` into groups (first, end) that together stay within the limits of one segment.

    Their sizes before cleaning count, so that the limits hold whatever is removed. The last segment ends at
    ``end_offset``.
    """
    groups = []
    first = 0
    while first < len(segments):
        end = first + 1
        total, offset_index, time_index = segments[first][1:]
        while end < len(segments):
            candidate = segments[end]
            following = segments[end + 1].base_offset if end + 1 < len(segments) else end_offset
            spans_too_much = following - 1 - segments[first].base_offset > _OFFSET_SPAN_MAX
            total += candidate.size_bytes
            offset_index += candidate.offset_index_bytes
            time_index += candidate.time_index_bytes
            if total > segment_bytes or max(offset_index, time_index) > index_bytes:
                break
            if spans_too_much and candidate.size_bytes:
                break
            end += 1
        groups.append((first, end))
        first = end
    return groups
