"""Bulk reads of Avro's and Protobuf's primitives from many payloads.

A few array operations read a value from every payload, whatever its length. They gather eight bytes at each position,
and extract the integer from them. docs/design/0018-schemas.md has the measurements.

Invariants

* Only the first fault of a payload is recorded, and reading continues. Later values of that payload are meaningless
  but stay within bounds, and its row is dropped at the end.
* A position is never behind its payload's end. ``PAD`` bytes around all payloads allow gathers beyond it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

Longs: TypeAlias = npt.NDArray[np.int64]
Words: TypeAlias = npt.NDArray[np.uint64]
Flags: TypeAlias = npt.NDArray[np.bool_]

PAD: Final = 32
TRUNCATED: Final = "it ends in the middle of a value"
TOO_LONG: Final = "an integer is too long"
NOT_TEXT: Final = "text is not UTF-8"

_WORD_BYTES: Final = 8
_INLINE_BYTES: Final = 12
_STOPS: Final = np.uint64(0x8080808080808080)
_U: Final = [np.uint64(number) for number in range(64)]
_GROUPS: Final = [
    (np.uint64(0x007F007F007F007F), np.uint64(0x7F007F007F007F00), _U[1]),
    (np.uint64(0x00003FFF00003FFF), np.uint64(0x3FFF00003FFF0000), _U[2]),
    (np.uint64(0x000000000FFFFFFF), np.uint64(0x0FFFFFFF00000000), _U[4]),
]
_SEVENS: Final = np.uint64(0x7F7F7F7F7F7F7F7F)


class Faults:
    """First fault of each payload. Its text contains the field's path."""

    def __init__(self, rows: int) -> None:
        self._of_row: npt.NDArray[np.int32] = np.zeros(rows, np.int32)
        self._texts: list[str] = [""]
        self._numbers: dict[str, int] = {}

    def add(self, rows: Longs, text: str) -> None:
        """Record a fault of rows that had none yet."""
        if not len(rows):
            return
        number = self._numbers.setdefault(text, len(self._texts))
        if number == len(self._texts):
            self._texts.append(text)
        fresh = rows[self._of_row[rows] == 0]
        self._of_row[fresh] = number

    def are_there(self, rows: Longs) -> Flags:
        """Return which of the rows have a fault."""
        found: Flags = self._of_row[rows] != 0
        return found

    def texts(self) -> dict[int, str]:
        """Return the faults by row."""
        return {int(row): self._texts[self._of_row[row]] for row in np.flatnonzero(self._of_row)}


class Wire:
    """Bytes of all payloads. Views gather several bytes at any position."""

    def __init__(self, data: npt.NDArray[np.uint8]) -> None:
        padding = np.zeros(PAD, np.uint8)
        self.bytes: npt.NDArray[np.uint8] = np.concatenate([padding, data, padding])
        count = len(self.bytes) - 15
        self.words: Words = np.ndarray((count,), np.dtype("<u8"), self.bytes.data, strides=(1,))
        self.halves: npt.NDArray[Any] = np.ndarray((count,), np.dtype("<u4"), self.bytes.data, strides=(1,))
        self.blocks: npt.NDArray[Any] = np.ndarray((count,), np.dtype("V16"), self.bytes.data, strides=(1,))
        self.buffer = pa.py_buffer(self.bytes)


class Cursor:
    """Position in each of several payloads. ``rows`` are their numbers for faults."""

    def __init__(self, wire: Wire, faults: Faults, rows: Longs, position: Longs, end: Longs) -> None:
        self.wire = wire
        self.faults = faults
        self.rows = rows
        self.position = position
        self.end = end

    def __len__(self) -> int:
        return len(self.rows)

    @classmethod
    def over(cls, payloads: pa.Array, skip: Longs | None = None) -> Cursor:
        """Create a cursor over an array of BINARY without nulls, after ``skip`` bytes of each."""
        offsets = np.frombuffer(payloads.buffers()[1], np.int32)[payloads.offset :][: len(payloads) + 1].astype(
            np.int64
        )
        values = payloads.buffers()[2]
        data = np.frombuffer(values, np.uint8) if values is not None else np.zeros(0, np.uint8)
        wire = Wire(data[offsets[0] : offsets[-1]])
        starts = offsets - offsets[0] + PAD
        position = starts[:-1].copy() if skip is None else starts[:-1] + skip
        rows = np.arange(len(payloads), dtype=np.int64)
        return cls(wire, Faults(len(payloads)), rows, position, starts[1:])

    def take(self, which: npt.NDArray[Any]) -> Cursor:
        """Return an independent cursor over some of the payloads, by index or mask."""
        return Cursor(self.wire, self.faults, self.rows[which], self.position[which], self.end[which])

    def fail(self, which: npt.NDArray[Any], text: str) -> None:
        """Record a fault, and move the payloads to their end."""
        self.faults.add(self.rows[which], text)
        self.position[which] = self.end[which]

    def advance(self, by: Longs | int, path: str) -> None:
        """Advance by a number of bytes; a position beyond the end is a fault."""
        self.position = self.position + by
        beyond = self.position > self.end
        if beyond.any():
            self.fail(beyond, f"{path}: {TRUNCATED}")

    def varint(self, path: str) -> Words:
        """Read an unsigned variable-length integer of up to 64 bits."""
        first = self.wire.bytes.take(self.position)
        if not (first & 0x80).any():
            self.advance(1, path)
            return first.astype(np.uint64)
        word = self.wire.words[self.position]
        stop = ~word & _STOPS
        lowest = stop & (~stop + _U[1])
        value = pack_sevens(word & ((lowest << _U[1]) - _U[1]))
        size = (np.bitwise_count(lowest - _U[1]).astype(np.int64) + 1) >> 3
        long = stop == 0
        if long.any():
            value[long], size[long] = self._long_varint(long, word[long], path)
        self.advance(size, path)
        return value

    def _long_varint(self, which: Flags, word: Words, path: str) -> tuple[Any, Any]:
        """Read the integers of nine and ten bytes."""
        following = self.wire.words[self.position[which] + _WORD_BYTES]
        ninth, tenth = following & np.uint64(0xFF), (following >> _U[8]) & np.uint64(0xFF)
        goes_on = ninth >= np.uint64(0x80)
        value = pack_sevens(word) | (ninth & np.uint64(0x7F)) << _U[56] | np.where(goes_on, tenth << _U[63], _U[0])
        too_long = goes_on & (tenth >= np.uint64(0x80))
        if too_long.any():
            self.faults.add(self.rows[which][too_long], f"{path}: {TOO_LONG}")
        return value, np.where(goes_on, 10, 9)

    def zigzag(self, path: str) -> Longs:
        """Read a signed variable-length integer."""
        return unzigzag(self.varint(path))

    def fixed(self, size: int, path: str) -> Words:
        """Read up to eight bytes as an unsigned number, little-endian."""
        word = self.wire.words[self.position]
        self.advance(size, path)
        return word if size == _WORD_BYTES else word & np.uint64((1 << (8 * size)) - 1)

    def lengths(self, lengths: Longs, path: str) -> tuple[Longs, Longs]:
        """Skip byte ranges; returns their starts and lengths, with length 0 for a fault."""
        starts = self.position
        wrong = (lengths < 0) | (lengths > self.end - starts)
        if wrong.any():
            self.fail(wrong, f"{path}: {TRUNCATED}")
            lengths = np.where(wrong, 0, lengths)
        self.position = np.where(wrong, self.end, starts + lengths)
        return starts, lengths

    def binary(self, starts: Longs, lengths: Longs) -> pa.Array:
        """Return byte ranges as BINARY.

        The function describes them to Arrow as views of the payloads, and Arrow copies them together.
        """
        views = self.wire.blocks[starts - 4].view(np.uint64).reshape(-1, 2)
        short = np.minimum(lengths, _INLINE_BYTES + 1)
        views[:, 0] = (views[:, 0] & _FIRST_MASK[short]) | lengths.view(np.uint64)
        views[:, 1] &= _SECOND_MASK[short]
        long = lengths > _INLINE_BYTES
        if long.any():
            views[long, 1] = starts[long].view(np.uint64) << _U[32]
        array = pa.Array.from_buffers(pa.binary_view(), len(starts), [None, pa.py_buffer(views), self.wire.buffer])
        return array.cast(pa.binary())

    def text(self, starts: Longs, lengths: Longs, path: str) -> pa.Array:
        """Return byte ranges as STRING; invalid UTF-8 is a fault."""
        array = self.binary(starts, lengths)
        try:
            return array.cast(pa.string())
        except pa.ArrowInvalid:
            wrong = np.array([_is_not_text(value) for value in array.to_pylist()], bool)
            self.faults.add(self.rows[wrong], f"{path}: {NOT_TEXT}")
            return self.binary(starts, np.where(wrong, 0, lengths)).cast(pa.string())


def pack_sevens(word: Words) -> Words:
    """Pack the low seven bits of each of eight bytes."""
    word = word & _SEVENS
    for low, high, shift in _GROUPS:
        word = (word & low) | ((word & high) >> shift)
    return word


def unzigzag(raw: Words) -> Longs:
    """Decode zig-zag: 0, 1, 2, 3 become 0, -1, 1, -2."""
    return (raw >> _U[1]).view(np.int64) ^ -(raw & _U[1]).view(np.int64)


def _is_not_text(value: bytes) -> bool:
    try:
        value.decode()
    except UnicodeDecodeError:
        return True
    return False


def scatter(present: pa.Array, rows: npt.NDArray[Any], length: int) -> pa.Array:
    """Put values into their rows, and nulls into the others."""
    at = np.zeros(length, np.int32)
    missing = np.ones(length, bool)
    at[rows] = np.arange(len(rows), dtype=np.int32)
    missing[rows] = False
    return present.take(pa.array(at, mask=missing))


def lists(
    elements: Sequence[pa.Array], owners: Sequence[Longs], length: int, item: pa.DataType
) -> tuple[pa.Array, Any]:
    """Sort elements, which were read in rounds, by row; returns them and the lists' offsets."""
    offsets = np.zeros(length + 1, np.int32)
    if not elements:
        return pa.array([], item), pa.array(offsets, pa.int32())
    owner = np.concatenate(owners)
    np.cumsum(np.bincount(owner, minlength=length), out=offsets[1:])
    together = pa.concat_arrays(elements)
    if len(elements) > 1:
        together = together.take(pa.array(np.argsort(owner, kind="stable")))
    return together, pa.array(offsets, pa.int32())


def _masks() -> tuple[Words, Words]:
    """Return the masks of a view's two words by length: the value's bytes, or the prefix of a long value."""
    first, second = [], []
    for length in range(_INLINE_BYTES + 2):
        first.append(((1 << (8 * min(length, 4))) - 1) << 32)
        second.append((1 << (8 * max(min(length - 4, 8), 0))) - 1)
    return np.array(first, np.uint64), np.array(second, np.uint64)


_FIRST_MASK, _SECOND_MASK = _masks()
