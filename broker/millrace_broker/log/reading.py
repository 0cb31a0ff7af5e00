"""Read and look up across the segments of a log. The caller has checked the offsets against the log's ends."""

from __future__ import annotations

from collections.abc import Sequence

from millrace_broker.log.segment import Segment
from millrace_broker.log.timestamps import first_at_or_after


def floor(segments: Sequence[Segment], offset: int) -> int:
    """Return the number of the last segment that begins at or before ``offset``, else 0."""
    low, high = 0, len(segments)
    while low < high:
        middle = (low + high) // 2
        if segments[middle].base_offset <= offset:
            low = middle + 1
        else:
            high = middle
    return max(low - 1, 0)


def read_batches(
    segments: Sequence[Segment],
    start_offset: int,
    end_offset: int,
    max_bytes: int,
    *,
    log_end_offset: int,
    min_one_batch: bool,
) -> bytes:
    """Read whole batches of ``start_offset..end_offset`` (exclusive) from the first segment that has any."""
    for number in range(floor(segments, start_offset), len(segments)):
        following = segments[number + 1].base_offset if number + 1 < len(segments) else log_end_offset
        found = _read_segment(segments[number], start_offset, end_offset, following, max_bytes, min_one_batch)
        if found is not None:
            return found
    return b""


def _read_segment(
    segment: Segment, start_offset: int, end_offset: int, following: int, max_bytes: int, min_one_batch: bool
) -> bytes | None:
    """Read from one segment; None when it has nothing at or after ``start_offset``."""
    limit = segment.size_bytes
    first = segment.find(start_offset, limit)
    if first is None:
        return None
    position, header = first
    if header.base_offset >= end_offset:
        return b""
    if end_offset < following:
        last = segment.find(end_offset - 1, limit)
        if last is not None:
            limit = last[0] + (last[1].size_bytes if last[1].base_offset < end_offset else 0)
    stop = segment.boundary(position, position + max_bytes, limit)
    if stop <= position:
        if not min_one_batch:
            return b""
        stop = position + header.size_bytes
    return segment.read(position, stop - position)


def find_time(segment: Segment, timestamp_ms: int, start_offset: int) -> tuple[int, int] | None:
    """Find the first record from ``start_offset`` on whose time is at least ``timestamp_ms``: (offset, timestamp)."""
    for position, header in segment.find_time(timestamp_ms, start_offset):
        batch = segment.read(position, header.size_bytes)
        found = first_at_or_after(batch, header, timestamp_ms, start_offset)
        if found is not None:
            return found
    return None
