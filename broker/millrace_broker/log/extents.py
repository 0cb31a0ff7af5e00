"""Extents: runs of batches that tasks read in parallel.

Invariant: the extents tile a range of offsets. The first begins at the start of the range, and the last ends at its
end. Each other one begins where the previous one ends. By file position, every batch of the range lies wholly in one
extent.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from millrace.records import MAGIC
from millrace_broker.log.segment import Segment
from millrace_broker.log.segment_list import floor
from millrace_broker.log.tiered.remote_segment import RemoteSegment


@dataclass(frozen=True, slots=True, kw_only=True)
class Extent:
    """A run of whole batches in one segment's ``.log``. End offset and position are exclusive.

    ``uri`` is set if the ``.log`` is a copy in the remote store; ``path`` then is no file. With ``has_messages`` the
    extent begins with messages of magic 0 or 1, which only the broker converts to batches.
    """

    segment_base_offset: int
    start_offset: int
    end_offset: int
    start_position: int
    end_position: int
    path: Path
    uri: str = ""
    has_messages: bool = False


def cut(segments: Sequence[Segment], start_offset: int, end_offset: int, split_bytes: int) -> list[Extent]:
    """Cut a range of offsets into extents of about ``split_bytes``; 0 cuts per segment.

    The range is ``start_offset..end_offset`` (exclusive, inside the log). ``segments`` are the log's, in order.
    """
    extents: list[Extent] = []
    segment_start = start_offset
    for segment in segments[floor(segments, start_offset) :]:
        if segment.base_offset >= end_offset:
            break
        extents += _cut_segment(segment, segment_start, end_offset, split_bytes)
        if isinstance(segment, RemoteSegment):  # it may overlap the next segment, which another replica rolled
            segment_start = max(segment_start, segment.end_offset)
    return _tile(extents, start_offset, end_offset)


def _cut_segment(segment: Segment, start_offset: int, end_offset: int, split_bytes: int) -> Iterator[Extent]:
    size_bytes = segment.size_bytes
    first = segment.find(start_offset, size_bytes)
    if first is None:
        return
    position, header = first
    offset = header.base_offset
    if offset >= end_offset:
        return
    last = segment.find(end_offset, size_bytes)
    end_position = size_bytes if last is None else last[0]
    if last is not None and last[1].base_offset < end_offset:
        end_position += last[1].size_bytes
    # A rest smaller than half a split stays with its neighbour.
    while split_bytes > 0 and end_position - position >= split_bytes + split_bytes // 2:
        boundary = segment.boundary(position, position + split_bytes, end_position)
        if boundary <= position:  # a batch larger than the split is an extent of its own
            boundary = position + segment.header_at(position).size_bytes
        if boundary >= end_position:
            break
        next_offset = segment.offset_at(boundary)
        yield _extent(segment, offset, next_offset, position, boundary)
        position, offset = boundary, next_offset
    yield _extent(segment, offset, end_offset, position, end_position)


def _extent(segment: Segment, start_offset: int, end_offset: int, start_position: int, end_position: int) -> Extent:
    return Extent(
        segment_base_offset=segment.base_offset,
        start_offset=start_offset,
        end_offset=end_offset,
        start_position=start_position,
        end_position=end_position,
        path=segment.path,
        uri=segment.uri,
        has_messages=segment.header_at(start_position).magic < MAGIC,
    )


def _tile(extents: list[Extent], start_offset: int, end_offset: int) -> list[Extent]:
    """Extend each extent to the start of the next, over the gaps that compaction left between batches."""
    starts = [start_offset, *(extent.start_offset for extent in extents[1:]), end_offset]
    return [
        replace(extent, start_offset=starts[number], end_offset=starts[number + 1])
        for number, extent in enumerate(extents)
    ]
