"""Bounds of the records in rows batches. Finding them is the only part of fast reading that goes from record to record.

A record begins with its length, at the end of the record before it. One batch is walked by a loop in Python, which
takes some 100 ns a record. Many batches, as a Kafka producer sends them, are walked by numpy at the same time. Each
step finds the next record of every batch, which takes a quarter of that.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from itertools import repeat
from typing import Final, NamedTuple

import numpy as np

from millrace.errors import CorruptBatchError
from millrace.records.varint import read_varint
from millrace.records.varint_arrays import BITS_A_BYTE, GOES_ON, Longs, read_varints

_INT_MAX: Final = 2**31 - 1
_ABREAST_MIN: Final = 16
"""With fewer batches, the calls into numpy take longer than the loop."""
_STEPS_PER_RECORD_MAX: Final = 2
"""If few batches are much longer than the others, most steps of the others are beyond their ends."""


class RecordBounds(NamedTuple):
    """Joined bodies of batches, and the positions of their records.

    A record's positions are its start, the byte after its length, and its end.
    """

    body: bytes
    starts: Longs
    after_lengths: Longs
    ends: Longs


def find_records(bodies: Sequence[bytes | memoryview], counts: Sequence[int]) -> RecordBounds:
    """Find the records of batches, which have these decompressed bodies and numbers of records.

    The joined bodies may have more bytes than ``bodies``. Raises ``CorruptBatchError`` if the records of a body do not
    end at its end, or the bodies are 2 GiB or more.
    """
    sizes = [len(body) for body in bodies]
    _require(all(0 < count <= size for size, count in zip(sizes, counts, strict=True)) and sum(sizes) <= _INT_MAX)
    steps, batches = max(counts), len(counts)
    ends: Longs | None = None
    if batches >= _ABREAST_MIN and steps * batches <= sum(counts) * _STEPS_PER_RECORD_MAX:
        body = b"".join([*bodies, bytes(steps + 1)])
        ends = _ends_abreast(body, sizes, counts)
    else:
        body = b"".join(bodies)
    if ends is None:
        ends = _ends_in_turn(body, sizes, counts)
    starts = np.empty_like(ends)
    starts[0] = 0
    starts[1:] = ends[:-1]
    data = np.frombuffer(body, np.uint8)
    first = data.take(starts)
    _require(not (first & 1).any())  # the sign of a length
    is_long = first >= GOES_ON
    after_lengths = starts + 1 + is_long
    if data.take(starts + is_long).max() >= GOES_ON:  # records of 8 KiB and more
        after_lengths = read_varints(data, starts, 32)[1]
    return RecordBounds(body, starts, after_lengths, ends)


_FIRST: Final = tuple(1 + (first & 0x7F) // 2 + (first >= GOES_ON) for first in range(256))
"""For the first byte of a length: the size of a length of one or two bytes, plus the byte's share of the length."""
_SECOND: Final = tuple(second << BITS_A_BYTE - 1 for second in range(GOES_ON))
"""Share of the second byte, if it is the last one."""


def _ends_in_turn(body: bytes, sizes: Sequence[int], counts: Sequence[int]) -> Longs:
    """Return the end of each record, found batch by batch. Raises ``CorruptBatchError``."""
    found: list[int] = []
    end = 0
    for size, count in zip(sizes, counts, strict=True):
        found += _ends_of_batch(body, end, count)
        end += size
        _require(found[-1] == end)
    return np.fromiter(found, np.int64, len(found))


def _ends_of_batch(body: bytes, at: int, count: int) -> list[int]:
    """Return the end of each of the records from a position on. The caller checks that no length is negative.

    The loop is written for speed.
    """
    first_share, second_share = _FIRST, _SECOND  # local names are faster, and a literal
    try:
        return [
            at := at + first_share[first]
            if (first := body[at]) < 0x80
            else at + first_share[first] + second_share[second]
            if (second := body[at + 1]) < 0x80
            else _end_of_large(body, at)
            for _ in repeat(None, count)
        ]
    except IndexError:
        raise CorruptBatchError("the records end before the last one") from None


def _end_of_large(body: bytes, at: int) -> int:
    length, at = read_varint(body, at)
    return at + max(length, 0)


@cache
def _step_sizes() -> Longs:
    """Return the size of a record by its first two bytes, as a little-endian number.

    If the length has more bytes, the size is one that leaves the bodies.
    """
    second, first = np.divmod(np.arange(2**16), 2**8)
    of_first = np.array(_FIRST)[first]
    of_both = np.where(second < GOES_ON, of_first + (second << BITS_A_BYTE - 1), _INT_MAX)
    return np.where(first < GOES_ON, of_first, of_both)


def _ends_abreast(body: bytes, sizes: Sequence[int], counts: Sequence[int]) -> Longs | None:
    """Return the end of each record, found step by step in all batches. Return None if a record is 8 KiB or more.

    All batches take the steps of the longest one. A batch that is at its end continues in the next one, and the last
    one in zeros after the bodies. These ends are dropped. None is also the result for damaged batches.
    """
    pairs = np.ndarray(len(body) - 1, "<u2", body, strides=(1,))  # the two bytes from each position on
    batch_ends = np.cumsum(sizes)
    at = batch_ends - sizes
    ends = np.empty((max(counts), len(counts)), np.int64)
    sizes_by_pair = _step_sizes()
    try:
        for step in ends:
            at = np.add(at, sizes_by_pair[pairs[at]], out=step)
    except IndexError:
        return None
    numbers = np.array(counts)
    if not np.array_equal(ends[numbers - 1, np.arange(len(counts))], batch_ends):
        return None
    by_batch = ends.T
    return by_batch.reshape(-1) if len(set(counts)) == 1 else by_batch[np.arange(len(ends)) < numbers[:, None]]


def _require(holds: bool | np.bool) -> None:
    if not holds:
        raise CorruptBatchError("not a regular batch")
