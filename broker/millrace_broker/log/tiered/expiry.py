"""The decision which remote segments total retention deletes."""

from __future__ import annotations

from collections.abc import Sequence

from millrace_broker.log.retention import SegmentFacts, count_deletable
from millrace_broker.log.tiered.remote_segment import RemoteSegment


def count_expired(
    remote: Sequence[RemoteSegment],
    local: Sequence[SegmentFacts],
    *,
    now_ms: int,
    retention_ms: int,
    retention_bytes: int,
    log_start_offset: int,
) -> int:
    """Count the remote segments, from the oldest, that may be deleted. Negative limits mean none.

    ``local`` are the log's segments on the disk. The size of the whole log is that of the remote segments and of the
    local segments without a copy.
    """
    if not remote:
        return 0
    end_offset = remote[-1].end_offset
    facts = [
        SegmentFacts(
            segment.base_offset,
            segment.end_offset,
            segment.size_bytes,
            segment.largest_ms if segment.largest_ms >= 0 else segment.copied_ms,
        )
        for segment in remote
    ]
    facts += [segment for segment in local if segment.base_offset >= end_offset or segment.end_offset > end_offset]
    return count_deletable(
        facts,
        now_ms=now_ms,
        retention_ms=retention_ms,
        retention_bytes=retention_bytes,
        log_start_offset=log_start_offset,
        high_watermark=end_offset,
    )
