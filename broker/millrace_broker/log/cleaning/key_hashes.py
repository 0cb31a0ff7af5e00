"""128-bit hashes of all keys of an array at once.

Two keys count as equal if their hashes are equal. Keys up to 256 bytes are hashed by *multilinear* hashing, a family of
hash functions that is proven universal. The proofs are in Carter and Wegman (1979) and in Lemire and Kaser, "Strongly
universal string hashing is fast" (2014).

A key is its length and its 32-bit words. Each of four lanes multiplies them by random 64-bit coefficients, adds modulo
2^64 and keeps the upper 32 bits. Any two different keys collide in one lane with a probability of at most 2^-32, and in
all four lanes of at most 2^-128. Longer keys are hashed by keyed BLAKE2b. The coefficients are secret and drawn for
each ``KeyHasher``, so that nobody can prepare keys that collide.
"""

from __future__ import annotations

import hashlib
import secrets
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

Hashes: TypeAlias = npt.NDArray[np.uint64]
"""An array of shape (keys, 2), with the two halves of each hash."""

_LANES: Final = 4
_WORD_BYTES: Final = 4
_LONG_KEY_BYTES: Final = 256
"""The size above which numpy calls over few rows cost more than a call of BLAKE2b for each key."""
_HALF_BITS: Final = np.uint64(32)
_MASKS: Final = np.array([0, 0xFF, 0xFFFF, 0xFFFFFF, 0xFFFFFFFF], np.uint64)
"""The masks of a word by the number of its bytes that belong to the key."""


class KeyHasher:
    """A member of the hash family.

    Only hashes of the same hasher are comparable.
    """

    def __init__(self, seed: int | None = None) -> None:
        """Draw a member; ``seed`` fixes it, for tests."""
        words = _LONG_KEY_BYTES // _WORD_BYTES
        generator = np.random.default_rng(secrets.randbits(128) if seed is None else seed)
        self._coefficients = generator.integers(0, 2**64, (words + 2, _LANES), dtype=np.uint64)
        self._secret = generator.bytes(32)

    def hash(self, keys: pa.BinaryArray | pa.LargeBinaryArray) -> Hashes:
        """Hash every key; the hash of a null key has no meaning."""
        count = len(keys)
        if not count:
            return np.empty((0, 2), np.uint64)
        starts, sizes, data = _layout(keys)
        long = np.flatnonzero(sizes > _LONG_KEY_BYTES)
        lanes = self._multilinear(starts, np.where(sizes > _LONG_KEY_BYTES, 0, sizes) if long.size else sizes, data)
        hashes = np.empty((count, 2), np.uint64)
        for half in (0, 1):
            upper = lanes[2 * half] >> _HALF_BITS
            hashes[:, half] = (upper << _HALF_BITS) | (lanes[2 * half + 1] >> _HALF_BITS)
        for row in long.tolist():
            key = data[starts[row] : starts[row] + sizes[row]].tobytes()
            digest = hashlib.blake2b(key, digest_size=16, key=self._secret).digest()
            hashes[row] = np.frombuffer(digest, np.uint64)
        return hashes

    def _multilinear(
        self, starts: npt.NDArray[np.int64], sizes: npt.NDArray[np.int64], data: npt.NDArray[np.uint8]
    ) -> list[npt.NDArray[np.uint64]]:
        coefficients = self._coefficients
        length = sizes.astype(np.uint64)
        lanes = [length * coefficients[1, lane] + coefficients[0, lane] for lane in range(_LANES)]
        # Words begin at any byte. This is a view of all words, in which each overlaps the next.
        words = np.ndarray((len(data) - _WORD_BYTES + 1,), "<u4", data, strides=(1,))
        word_counts = (sizes + _WORD_BYTES - 1) // _WORD_BYTES
        fewest = int(word_counts.min())
        for number in range(int(word_counts.max())):
            rows = slice(None) if number < fewest else np.flatnonzero(word_counts > number)
            word = words[starts[rows] + _WORD_BYTES * number].astype(np.uint64)
            left = sizes[rows] - _WORD_BYTES * number
            if left.min() < _WORD_BYTES:
                word &= _MASKS[np.minimum(left, _WORD_BYTES)]
            for lane in range(_LANES):
                lanes[lane][rows] += word * coefficients[number + 2, lane]
        return lanes


def _layout(
    keys: pa.BinaryArray | pa.LargeBinaryArray,
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], npt.NDArray[np.uint8]]:
    """Return each key's start and size (0 for null), and the bytes of all keys with a few more after them."""
    _, offsets_buffer, data_buffer = keys.buffers()
    is_large = pa.types.is_large_binary(keys.type)
    offsets = np.frombuffer(offsets_buffer, np.int64 if is_large else np.int32)
    bounds = offsets[keys.offset : keys.offset + len(keys) + 1].astype(np.int64)
    sizes = np.diff(bounds)
    first, last = int(bounds[0]), int(bounds[-1])
    data = np.zeros(last - first + _WORD_BYTES, np.uint8)
    if last > first:
        data[: last - first] = np.frombuffer(data_buffer, np.uint8)[first:last]
    if keys.null_count:
        sizes = np.where(valid_mask(keys), sizes, 0)
    return bounds[:-1] - first, sizes, data


def valid_mask(array: pa.Array) -> npt.NDArray[np.bool]:
    """Return a mask of the values that are not null."""
    if not array.null_count:
        return np.ones(len(array), bool)
    validity = array.buffers()[0]
    return np.zeros(len(array), bool) if validity is None else mask_of_bits(validity, array.offset, len(array))


def mask_of_bits(bits: pa.Buffer, offset: int, count: int) -> npt.NDArray[np.bool]:
    """Return a bitmap of Arrow as an array of booleans."""
    first = offset // 8
    used = np.frombuffer(bits, np.uint8)[first : (offset + count + 7) // 8]
    return np.unpackbits(used, bitorder="little")[offset - 8 * first :][:count].astype(bool)
