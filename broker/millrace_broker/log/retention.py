"""Decisions of retention on segment facts (Kafka's ``UnifiedLog.deleteOldSegments``)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SegmentFacts:
    """A segment's facts for retention.

    ``largest_ms`` is the largest timestamp, or the file's time if there is none or the segment is damaged.
    """

    base_offset: int
    end_offset: int
    size_bytes: int
    largest_ms: int


def count_deletable(
    segments: Sequence[SegmentFacts],
    *,
    now_ms: int,
    retention_ms: int,
    retention_bytes: int,
    log_start_offset: int,
    high_watermark: int,
) -> int:
    """Count the segments, from the oldest, that may be deleted.

    A segment is deleted when its newest record is older than ``retention_ms``. It is also deleted when the log without
    it still has ``retention_bytes``, or when it ends before the log start. Negative limits mean none. Segments with
    records at or after the high watermark stay. An empty last segment stays, because its deletion gains nothing. If
    even the last segment may be deleted, the caller rolls first.
    """
    excess_bytes = sum(segment.size_bytes for segment in segments) - retention_bytes
    count = 0
    for number, segment in enumerate(segments):
        is_last = number == len(segments) - 1
        if segment.end_offset > high_watermark or (is_last and not segment.size_bytes):
            break
        too_old = 0 <= retention_ms < now_ms - segment.largest_ms
        too_much = retention_bytes >= 0 and excess_bytes - segment.size_bytes >= 0
        before_start = not is_last and segment.end_offset <= log_start_offset
        if not (too_old or too_much or before_start):
            break
        excess_bytes -= segment.size_bytes
        count += 1
    return count


def count_copied(segments: Sequence[SegmentFacts], count: int, *, copied_end_offset: int, log_start_offset: int) -> int:
    """Count how many of the oldest ``count`` segments of a tiered log may be deleted from the disk.

    These have a complete copy in the remote store, or end before the log start.
    """
    kept_from = max(copied_end_offset, log_start_offset)
    return next((number for number, each in enumerate(segments[:count]) if each.end_offset > kept_from), count)
