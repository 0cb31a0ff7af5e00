"""Reads and look-ups across the segments of a log.

The caller has checked the offsets against the log's ends. Reads return batches. An old log of Kafka may begin with
messages of magic 0 and 1; they are converted to batches here.

A remote segment may overlap the next segment, because replicas roll at different offsets. The overlap is read from the
remote segment.
"""

from __future__ import annotations

from collections.abc import Sequence

from millrace.errors import CorruptBatchError
from millrace.records import LOG_OVERHEAD_BYTES, MAGIC, RecordFormat, convert, end_of_rows, read_header, verify_crc
from millrace_broker.log.record_timestamps import first_at_or_after
from millrace_broker.log.segment import PLACE, Segment
from millrace_broker.log.segment_list import floor
from millrace_broker.log.tiered.remote_segment import RemoteSegment


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
        segment, is_last = segments[number], number + 1 == len(segments)
        following = log_end_offset if is_last else segments[number + 1].base_offset
        if isinstance(segment, RemoteSegment):  # another leader may have copied it, with other boundaries
            following = max(following, segment.end_offset)
        sealed_end = None if is_last else following
        found = _read_segment(segment, start_offset, end_offset, following, max_bytes, min_one_batch, sealed_end)
        if found is not None:
            return found
    return b""


def _check_ascending(segment: Segment, position: int, data: bytes, sealed_end: int | None) -> bool:
    """Check that the offsets of the batches at ``position`` ascend, because readers trust them.

    They are outside the checksum. Returns whether there are messages of magic 0 or 1. Raises ``CorruptBatchError``.
    """
    next_offset = end_of_rows(data, segment.base_offset)
    if next_offset is not None:
        _check_end(segment, position + len(data), next_offset, sealed_end)
        return False
    at, least_offset, has_messages = 0, segment.base_offset, False
    while at < len(data):
        if len(data) - at >= PLACE.size:
            base_offset, length, magic, delta = PLACE.unpack_from(data, at)
        else:  # a message may be as short as 26 bytes
            base_offset, length, magic, delta = PLACE.unpack(data[at:].ljust(PLACE.size, b"\0"))
        if base_offset < least_offset or length <= 0:
            raise _disorder(segment, position + at)
        is_message = magic < MAGIC
        has_messages |= is_message
        least_offset = base_offset + 1 + (0 if is_message else delta)
        at += LOG_OVERHEAD_BYTES + length
    _check_end(segment, position + at, least_offset, sealed_end)
    return has_messages


def _check_end(segment: Segment, position: int, next_offset: int, sealed_end: int | None) -> None:
    """Check that the next batch, or the next segment, begins at ``next_offset`` or later.

    The segment remembers such a batch, because the next read usually begins with it.
    """
    following = segment.header_at(position) if position < segment.size_bytes else None
    limit = sealed_end if following is None else following.base_offset
    if limit is not None and next_offset > limit:
        raise _disorder(segment, position)
    if following is not None:
        segment.remember(position, following)


def _disorder(segment: Segment, position: int) -> CorruptBatchError:
    return CorruptBatchError(
        f"{segment.path}: the batches around position {position} are not consecutive: restore the file from a copy, "
        "or delete the partition"
    )


def _read_segment(
    segment: Segment,
    start_offset: int,
    end_offset: int,
    following: int,
    max_bytes: int,
    min_one_batch: bool,
    sealed_end: int | None,
) -> bytes | None:
    """Read from one segment; returns None if it has no records at or after ``start_offset``."""
    limit = segment.size_bytes
    first = segment.find(start_offset, limit)
    if first is None or first[1].base_offset > start_offset:
        # A gap of compaction, or a look-up that skipped a batch because of a damaged header.
        segment.verify_near(start_offset, limit if first is None else first[0])
    if first is None:
        return None
    position, header = first
    if header.base_offset >= end_offset:
        _check_end(segment, position + header.size_bytes, header.next_offset, sealed_end)
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
    data = segment.read(position, stop - position)
    has_messages = _check_ascending(segment, position, data, sealed_end)
    return b"".join(convert(data, RecordFormat.ROWS)) if has_messages else data


def find_time(segment: Segment, timestamp_ms: int, start_offset: int) -> tuple[int, int] | None:
    """Find the first record from ``start_offset`` on, not before ``timestamp_ms``: (offset, timestamp)."""
    for position, header in segment.batches_from_time(timestamp_ms, start_offset):
        data = segment.read(position, header.size_bytes)
        if header.magic < MAGIC:
            data = b"".join(convert(data, RecordFormat.ROWS))
            header = read_header(data)
        verify_crc(data, 0, header)  # verify every batch; a flipped bit in its largest timestamp would hide it
        if header.max_timestamp < timestamp_ms:
            continue
        found = first_at_or_after(data, header, timestamp_ms, start_offset)
        if found is not None:
            return found
    return None
