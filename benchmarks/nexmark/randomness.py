"""Random numbers and texts from a seed and an event's number.

They are drawn for many events at once, with integer arithmetic and products of table entries. A vectorised ``pow`` or
``log`` is never used, because its last bits can depend on the position in an array. Events must not depend on their
chunks.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from benchmarks.data import splitmix64

Integers = npt.NDArray[np.int64]

_HALF = np.uint64(32)
_LOW = np.uint64(0xFFFFFFFF)
LIMIT_MAX = 2**31
"""The upper limit of draws: 32 random bits are scaled to a range."""

_PRICE_BITS = 12
_PRICE_STEPS = 1 << _PRICE_BITS
_COARSE = np.array([10.0 ** (6.0 * step / _PRICE_STEPS) for step in range(_PRICE_STEPS)])
_FINE = np.array([10.0 ** (6.0 * step / _PRICE_STEPS**2) for step in range(_PRICE_STEPS)])

_INLINE_BYTES = 12  # a view of at most so many bytes holds them itself (Arrow's variable-size binary view layout)
_LETTERS = 26
_SPECIAL_ODDS = 13


class Draws:
    """The random numbers of some events. Each call returns the next number of every one of them.

    All events draw in step, as a generator of a single event draws number after number. An event's numbers do not
    depend on the other events.
    """

    def __init__(self, seed: int, numbers: Integers) -> None:
        start = splitmix64(np.array([seed], dtype=np.int64).view(np.uint64))
        self._keys = splitmix64(numbers.view(np.uint64) + start)
        self._drawn = 0
        self._pair = self._keys

    def bits(self) -> npt.NDArray[np.uint64]:
        """Return the next 32 random bits of each."""
        drawn, self._drawn = self._drawn, self._drawn + 1
        if drawn % 2 == 0:
            self._pair = splitmix64(self._keys + np.uint64(drawn))
            return self._pair >> _HALF
        return self._pair & _LOW

    def below(self, limit: int | Integers) -> Integers:
        """Return the next number of each, from 0 up to and without the limit.

        The limit is one for all, or one for each.
        """
        limits = np.uint64(limit) if isinstance(limit, int) else limit.view(np.uint64)
        return ((self.bits() * limits) >> _HALF).view(np.int64)

    def price(self) -> Integers:
        """Return the next price of each in cents, from 1 to 1,000,000 dollars, with evenly spread logarithms."""
        bits = self.bits().view(np.int64)
        coarse, fine = bits >> (32 - _PRICE_BITS), (bits >> (32 - 2 * _PRICE_BITS)) & (_PRICE_STEPS - 1)
        cents: Integers = np.rint(_COARSE[coarse] * _FINE[fine] * 100.0).astype(np.int64)
        return cents


class Text:
    """A megabyte of random lower-case letters. One character in 13 is a special one, if there is any.

    Texts are cut from it. This costs a fraction of drawing every letter, with the same distribution.
    """

    BYTES = 1 << 20

    def __init__(self, seed: int, special: str | None = None) -> None:
        draws = Draws(seed, np.arange(self.BYTES, dtype=np.int64))
        letters = (draws.below(_LETTERS) + ord("a")).astype(np.uint8)
        if special is not None:
            letters[draws.below(_SPECIAL_ODDS) == 0] = ord(special)
        self._letters = letters
        self._heads = np.lib.stride_tricks.sliding_window_view(letters, _INLINE_BYTES)

    def pieces(self, draws: Draws, lengths: Integers) -> pa.Array:
        """Return texts of these lengths from anywhere in it (a draw each), as an Arrow string array."""
        return self.cut(draws.below(self.BYTES - _INLINE_BYTES - lengths), lengths)

    def cut(self, starts: Integers, lengths: Integers) -> pa.Array:
        """Return the texts at these places. Arrow copies them itself, from views of the letters."""
        views = np.zeros((len(starts), 4), np.int32)
        views[:, 0] = lengths
        inside = lengths <= _INLINE_BYTES
        heads = self._heads[starts]
        heads[inside[:, None] & (np.arange(_INLINE_BYTES) >= lengths[:, None])] = 0
        # A short text: length and its bytes. A longer one: length, its first four bytes, number and offset in a buffer.
        views[:, 1:] = heads.view(np.int32)
        views[~inside, 2] = 0
        views[~inside, 3] = starts[~inside]
        buffers = [None, pa.py_buffer(views), pa.py_buffer(self._letters)]
        return pa.Array.from_buffers(pa.string_view(), len(starts), buffers).cast(pa.string())
