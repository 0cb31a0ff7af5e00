"""Lookup in a segment's sparse indexes (Kafka's ``OffsetIndex`` and ``TimeIndex``).

Offset index, 8 bytes an entry, big-endian: i32 offset relative to the segment's base, i32 position in the ``.log``.
The offset is the *last* one of a batch and the position is that of the batch's first byte. Offsets and positions both
strictly ascend, and no position is 0, because the segment's first batch needs no entry.

Time index, 12 bytes an entry: i64 timestamp in ms, i32 relative offset. Records before that offset have smaller
timestamps, and the batch that ends at that offset has the timestamp. Both fields strictly ascend.

An index is a hint. It may be preallocated (zeros behind the last entry). A reader compares each entry that it uses
with the batch at that position. Therefore a damaged index causes a rebuild and never a wrong result.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, NamedTuple

from millrace.errors import CorruptBatchError

OFFSET_ENTRY_BYTES: Final = 8
TIME_ENTRY_BYTES: Final = 12

_OFFSET_ENTRY: Final = struct.Struct(">ii")
_TIME_ENTRY: Final = struct.Struct(">qi")
_POSITION: Final = struct.Struct(">4xi")
_RELATIVE_MAX: Final = 2**31 - 1

Bytes = bytes | bytearray | memoryview


class OffsetEntry(NamedTuple):
    """Entry whose ``offset`` (absolute) is the last of the batch at ``position``."""

    offset: int
    position: int


class TimeEntry(NamedTuple):
    """Entry of a time index.

    ``timestamp_ms`` is the largest timestamp up to ``offset`` (absolute). The batch that ends at ``offset`` reached it
    first.
    """

    timestamp_ms: int
    offset: int


@dataclass(frozen=True, slots=True)
class OffsetIndex:
    """Offset index of a segment (Kafka's ``OffsetIndex``).

    Its entries are in ``buffer``, the bytes of its file. The file may grow at the end.
    """

    buffer: Bytes
    base_offset: int

    @classmethod
    def of_file(cls, buffer: Bytes, base_offset: int) -> OffsetIndex:
        """Create the index from a file's content, without preallocated zeros and an incomplete last entry."""
        count = _count_before_zeros(buffer, OFFSET_ENTRY_BYTES, _POSITION)
        return cls(memoryview(buffer)[: count * OFFSET_ENTRY_BYTES], base_offset)

    def __len__(self) -> int:
        return len(self.buffer) // OFFSET_ENTRY_BYTES

    def __getitem__(self, number: int) -> OffsetEntry:
        relative, position = _OFFSET_ENTRY.unpack_from(self.buffer, number * OFFSET_ENTRY_BYTES)
        return OffsetEntry(self.base_offset + relative, position)

    def __iter__(self) -> Iterator[OffsetEntry]:
        return (self[number] for number in range(len(self)))

    def lookup(self, offset: int) -> OffsetEntry:
        """Find the last entry whose offset is at most ``offset``; (base offset, 0) when there is none."""
        count = _count_up_to(self.buffer, len(self), _OFFSET_ENTRY, 0, offset - self.base_offset)
        return self[count - 1] if count else OffsetEntry(self.base_offset, 0)

    def lookup_position(self, position: int) -> OffsetEntry | None:
        """Find the last entry whose batch begins at or before ``position``."""
        count = _count_up_to(self.buffer, len(self), _OFFSET_ENTRY, 1, position)
        return self[count - 1] if count else None

    def problem(self) -> str | None:
        """Return a description of the first inconsistent entry; None if the entries are consistent."""
        previous = OffsetEntry(self.base_offset - 1, 0)
        for number, entry in enumerate(self):
            if entry.offset <= previous.offset or entry.position <= previous.position:
                return f"entry {number} {tuple(entry)} does not follow {tuple(previous)}"
            previous = entry
        return None


@dataclass(frozen=True, slots=True)
class TimeIndex:
    """Time index of a segment (Kafka's ``TimeIndex``).

    Its entries are in ``buffer``, the bytes of its file. The file may grow at the end.
    """

    buffer: Bytes
    base_offset: int

    @classmethod
    def of_file(cls, buffer: Bytes, base_offset: int) -> TimeIndex:
        """Create the index from a file's content, without preallocated zeros and an incomplete last entry.

        A single entry of zeros is valid: it stands for a batch of one record with timestamp 0.
        """
        is_one = len(buffer) // TIME_ENTRY_BYTES == 1
        count = 1 if is_one else _count_before_zeros(buffer, TIME_ENTRY_BYTES, _TIME_ENTRY)
        return cls(memoryview(buffer)[: count * TIME_ENTRY_BYTES], base_offset)

    def __len__(self) -> int:
        return len(self.buffer) // TIME_ENTRY_BYTES

    def __getitem__(self, number: int) -> TimeEntry:
        timestamp_ms, relative = _TIME_ENTRY.unpack_from(self.buffer, number * TIME_ENTRY_BYTES)
        return TimeEntry(timestamp_ms, self.base_offset + relative)

    def __iter__(self) -> Iterator[TimeEntry]:
        return (self[number] for number in range(len(self)))

    def lookup(self, timestamp_ms: int) -> TimeEntry:
        """Find the last entry whose timestamp is at most ``timestamp_ms``; (-1, base offset) when there is none."""
        count = _count_up_to(self.buffer, len(self), _TIME_ENTRY, 0, timestamp_ms)
        return self[count - 1] if count else TimeEntry(-1, self.base_offset)

    def last(self) -> TimeEntry:
        """Return the last entry, which holds the largest timestamp of a sealed segment."""
        return self[len(self) - 1] if len(self) else TimeEntry(-1, self.base_offset)

    def problem(self) -> str | None:
        """Return a description of the first inconsistent entry; None if the entries are consistent."""
        previous = TimeEntry(-1, self.base_offset - 1)
        for number, entry in enumerate(self):
            if entry.timestamp_ms <= previous.timestamp_ms or entry.offset <= previous.offset:
                return f"entry {number} {tuple(entry)} does not follow {tuple(previous)}"
            previous = entry
        return None


def pack_offset_entry(relative_offset: int, position: int) -> bytes:
    """Write an entry of an offset index. Raises ``CorruptBatchError`` for an offset outside the range of a segment."""
    _check_relative(relative_offset)
    return _OFFSET_ENTRY.pack(relative_offset, position)


def pack_time_entry(timestamp_ms: int, relative_offset: int) -> bytes:
    """Write an entry of a time index. Raises ``CorruptBatchError`` for an offset outside the range of a segment."""
    _check_relative(relative_offset)
    return _TIME_ENTRY.pack(timestamp_ms, relative_offset)


def _check_relative(offset: int) -> None:
    if not -_RELATIVE_MAX <= offset <= _RELATIVE_MAX:
        raise CorruptBatchError(f"a batch ends {offset} offsets behind the first one of its segment, which cannot be")


def _count_up_to(buffer: Bytes, count: int, entry: struct.Struct, field: int, target: int) -> int:
    """Count the entries whose ``field``, which ascends, is at most ``target``."""
    low, high = 0, count
    while low < high:
        middle = (low + high) // 2
        if entry.unpack_from(buffer, middle * entry.size)[field] <= target:
            low = middle + 1
        else:
            high = middle
    return low


def _count_before_zeros(buffer: Bytes, entry_bytes: int, first_field: struct.Struct) -> int:
    """Count the entries before the preallocated zeros; the checked fields of a valid entry are never all 0."""
    low, high = 0, len(buffer) // entry_bytes
    while low < high:
        middle = (low + high) // 2
        if any(first_field.unpack_from(buffer, middle * entry_bytes)):
            low = middle + 1
        else:
            high = middle
    return low
