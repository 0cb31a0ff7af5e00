"""Sound entries of a damaged log, found from its bytes.

A batch is sound if its checksum is correct and its offsets fit: they follow the earlier batches and precede the next
segment. The checksum does not cover the offset. After a gap, the offsets must therefore also fit the following batch.

After a damaged batch, the next sound batch is searched first at the end that the damaged batch claims, and then at
every byte. If none follows, the log ends. Entries of magic 0 and 1 have no second field that confirms a header, so they
are not searched. Such a log ends before the first damaged entry.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np

from millrace.errors import CorruptBatchError
from millrace.records import HEADER_BYTES, LOG_OVERHEAD_BYTES, MAGIC, crc_matches, read_header
from millrace.records.message_set import MAGIC_POSITION, MessageEntry

_PREFIX: Final = struct.Struct(">qi4xb")
_SEARCHED_BYTES: Final = 2**24
_RELATIVE_OFFSET_MAX: Final = 2**31 - 1
_MESSAGE_LENGTH_MIN: Final = 14


@dataclass(frozen=True, slots=True)
class Lost:
    """Bytes of a log that are no sound entry.

    Their offsets are ``first_offset`` to ``end_offset`` (exclusive). ``end_offset`` is None if it is unknown.
    """

    position: int
    size_bytes: int
    first_offset: int
    end_offset: int | None

    def __str__(self) -> str:
        if self.end_offset == self.first_offset:
            return f"{self.size_bytes} bytes at {self.position}, no offsets"
        last = "" if self.end_offset is None else str(self.end_offset - 1)
        return f"{self.size_bytes} bytes at {self.position}, offsets {self.first_offset}..{last}"


@dataclass(frozen=True, slots=True)
class Salvage:
    """The sound and the lost parts of a log.

    ``kept`` has runs of sound entries as (start, end) positions. ``lost`` has the bytes between and after them.
    ``end_offset`` is the offset after the last sound entry.
    """

    kept: tuple[tuple[int, int], ...]
    lost: tuple[Lost, ...]
    end_offset: int


class _Sound(NamedTuple):
    """Entry with a correct checksum and plausible offsets."""

    size_bytes: int
    first: int
    last: int


def salvage(content: memoryview, base_offset: int, following: int | None) -> Salvage:
    """Examine a segment's ``.log``. ``following`` is the base offset of the next segment; None for the last."""
    kept: list[tuple[int, int]] = []
    lost: list[Lost] = []
    position, expected, run_start = 0, base_offset, 0
    while position < len(content):
        found = _sound_at(content, position, expected, base_offset, following)
        if found is not None and not _is_contradicted(content, position, found, expected, base_offset, following):
            position, expected = position + found.size_bytes, found.last + 1
            continue
        if position > run_start:
            kept.append((run_start, position))
        resumed = _search(content, position, expected, base_offset, following)
        if resumed is None:
            lost.append(Lost(position, len(content) - position, expected, following))
            return Salvage(tuple(kept), tuple(lost), expected)
        at, offset = resumed
        lost.append(Lost(position, at - position, expected, offset))
        position = run_start = at
    if position > run_start:
        kept.append((run_start, position))
    return Salvage(tuple(kept), tuple(lost), expected)


def _sound_at(
    content: memoryview, position: int, expected: int, base_offset: int, following: int | None
) -> _Sound | None:
    """Return the sound entry at ``position``, or None."""
    if len(content) - position < _PREFIX.size:
        return None
    _, length, magic = _PREFIX.unpack_from(content, position)
    size_bytes = LOG_OVERHEAD_BYTES + length
    if position + size_bytes > len(content):
        return None
    if magic == MAGIC:
        try:
            header = read_header(content, position)
        except CorruptBatchError:
            return None
        if not crc_matches(content, position, header):
            return None
        first, last = header.base_offset, header.last_offset
    elif magic in (0, 1) and length >= _MESSAGE_LENGTH_MIN:
        entry = MessageEntry(content[position : position + size_bytes], 0, size_bytes)
        try:
            if not entry.crc_is_valid:
                return None
            first, last = entry.base_offset, entry.last_offset
        except CorruptBatchError:
            return None
    else:
        return None
    end = base_offset + _RELATIVE_OFFSET_MAX + 1 if following is None else following
    return _Sound(size_bytes, first, last) if expected <= first <= last < end else None


def _is_contradicted(
    content: memoryview, position: int, found: _Sound, expected: int, base_offset: int, following: int | None
) -> bool:
    """Return whether an entry after a gap has a wrong offset, because the next sound entry begins before its end.

    The checksum does not cover the offset. Comparing with the next *sound* entry keeps a wrong offset in front of a
    damaged batch from excluding later batches.
    """
    if found.first == expected:
        return False
    end = position + found.size_bytes
    after = _sound_at(content, end, expected, base_offset, following)
    if after is not None:
        return after.first <= found.last
    resumed = _search(content, end, expected, base_offset, following)
    return resumed is not None and resumed[1] <= found.last


def _search(
    content: memoryview, position: int, expected: int, base_offset: int, following: int | None
) -> tuple[int, int] | None:
    """Return position and first offset of the next sound batch of magic 2 after ``position``."""
    for at in _candidates(content, position):
        if _sound_at(content, at, expected, base_offset, following) is not None:
            return at, int(_PREFIX.unpack_from(content, at)[0])
    return None


def _candidates(content: memoryview, position: int) -> Iterator[int]:
    """Yield possible positions of a batch of magic 2, first the end that the damaged batch claims."""
    if len(content) - position >= _PREFIX.size:
        _, length, _ = _PREFIX.unpack_from(content, position)
        claimed = position + LOG_OVERHEAD_BYTES + length
        if position < claimed <= len(content) - HEADER_BYTES and content[claimed + MAGIC_POSITION] == MAGIC:
            yield claimed
    for start in range(position + 1, len(content) - HEADER_BYTES + 1, _SEARCHED_BYTES):
        end = min(start + _SEARCHED_BYTES, len(content) - HEADER_BYTES + 1)
        magics = np.frombuffer(content[start + MAGIC_POSITION : end + MAGIC_POSITION], np.uint8)
        for found in np.flatnonzero(magics == MAGIC):
            at = start + int(found)
            length = int.from_bytes(content[at + 8 : at + 12], "big", signed=True)
            if HEADER_BYTES - LOG_OVERHEAD_BYTES <= length <= len(content) - at - LOG_OVERHEAD_BYTES:
                yield at
