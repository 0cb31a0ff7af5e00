"""The check of a segment after a crash, Kafka's ``LogSegment.recover``.

The check finds the sound beginning of the segment. The offsets of batches are outside their checksums, and they must
rise. Compaction leaves gaps between batches, also in the active segment of a follower, which copies them. So gaps are
accepted before the recovery point and in compacted topics. Elsewhere a gap is accepted only if a further batch
continues the offsets after it. Otherwise the batch after the gap is the damaged one.
"""

from __future__ import annotations

from dataclasses import dataclass

from millrace.errors import CorruptBatchError
from millrace.records import HEADER_BYTES, MAGIC, BatchHeader, crc_matches, read_entry_header
from millrace_broker.log.index_builder import IndexBuilder, Mark
from millrace_broker.log.segment_appender import RELATIVE_OFFSET_MAX


@dataclass(frozen=True, slots=True, kw_only=True)
class SoundPart:
    """The sound beginning of a segment.

    ``end_offset`` is the offset after its last batch. ``problem`` is the reason why the rest is unsound; None if there
    is no rest. ``is_incomplete`` means that the rest is the beginning of the batch that was being written.
    """

    size_bytes: int
    end_offset: int
    problem: str | None = None
    is_incomplete: bool = False


def check_segment(
    content: memoryview, builder: IndexBuilder, recovery_point: int, following: int | None, *, is_compacted: bool
) -> SoundPart:
    """Check a segment's batches up to the first bad one, and add the sound ones to ``builder``.

    Checksums and gaps are checked from ``recovery_point`` on, gaps only if the topic is not compacted. ``following`` is
    the base offset of the next segment, None for the last one.
    """
    position, expected = 0, builder.base_offset
    before_gap: tuple[SoundPart, Mark] | None = None
    problem, is_incomplete = None, False
    while position < len(content) and problem is None:
        try:
            header = read_entry_header(content, position)
        except CorruptBatchError as error:
            problem, is_incomplete = error.message, len(content) - position < HEADER_BYTES
            break
        problem = _problem(content, position, header, expected, builder.base_offset, following)
        is_incomplete = header.base_offset == expected and position + header.size_bytes > len(content)
        is_unchecked = header.magic >= MAGIC and header.next_offset > recovery_point  # a message is checked as a whole
        if problem is None and is_unchecked and not crc_matches(content, position, header):
            problem = f"the batch of offset {header.base_offset} fails its checksum"
        if problem is None:
            is_after_gap = header.base_offset > expected and header.next_offset > recovery_point and not is_compacted
            gap = (
                f"offset {header.base_offset} does not follow {expected - 1}, and the log after this gap is not "
                "complete"
            )
            sound = SoundPart(size_bytes=position, end_offset=expected, problem=gap)
            before_gap = (sound, builder.mark()) if is_after_gap else None
            builder.add(position, header)
            position, expected = position + header.size_bytes, header.next_offset
    if before_gap is not None and (problem is not None or following is None):
        builder.reset(before_gap[1])
        return before_gap[0]
    return SoundPart(size_bytes=position, end_offset=expected, problem=problem, is_incomplete=is_incomplete)


def _problem(
    content: memoryview, position: int, header: BatchHeader, expected: int, base_offset: int, following: int | None
) -> str | None:
    """Return the reason, from its header alone, why the batch at ``position`` is impossible; None if it is not."""
    if header.base_offset < expected or header.last_offset_delta < 0:
        return f"offsets {header.base_offset}..{header.last_offset} do not follow {expected - 1}"
    if header.last_offset - base_offset > RELATIVE_OFFSET_MAX:
        return f"offset {header.last_offset} is too far from the segment's base offset {base_offset}"
    if following is not None and header.last_offset >= following:
        return f"offset {header.last_offset} belongs to the next segment, {following}"
    if position + header.size_bytes > len(content):
        return f"the last batch has {len(content) - position} of {header.size_bytes} bytes"
    return None
