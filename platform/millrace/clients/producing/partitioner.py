"""Partition of a key by Kafka's murmur2.

The functions are for columns of keys. Equal keys go to the same partitions as with Kafka's default
partitioner (``org.apache.kafka.clients.producer.internals.BuiltInPartitioner``, ``Utils.murmur2``).
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from millrace.schemas import encode_keys

_SEED: Final = 0x9747B28C
_M: Final = 0x5BD1E995
_R: Final = 24

Words = npt.NDArray[np.uint32]


def murmur2_array(keys: pa.LargeBinaryArray) -> npt.NDArray[np.int32]:
    """Return the hash of every key of a column; a null counts as an empty key."""
    offsets = np.frombuffer(keys.buffers()[1], np.int64)[keys.offset : keys.offset + len(keys) + 1]
    if not len(keys):
        return np.empty(0, np.int32)
    starts, lengths = offsets[:-1], np.diff(offsets)
    data = keys.buffers()[2]
    # Pad with three bytes, so that a word can be read at the last byte of the last key.
    padded = np.zeros((data.size if data is not None else 0) + 3, np.uint8)
    if data is not None:
        padded[: data.size] = np.frombuffer(data, np.uint8)
    words: Words = np.ndarray((max(len(padded) - 3, 0),), "<u4", padded, strides=(1,))
    if (lengths == lengths[0]).all():
        return _hash_sorted(words, starts, lengths).view(np.int32)
    order = np.argsort(-lengths, kind="stable")
    hashes = np.empty(len(keys), np.uint32)
    hashes[order] = _hash_sorted(words, starts[order], lengths[order])
    return hashes.view(np.int32)


def _hash_sorted(words: Words, starts: npt.NDArray[np.int64], lengths: npt.NDArray[np.int64]) -> Words:
    """Hash keys that are sorted by length, longest first, so that the keys with an n-th word are a prefix."""
    m = np.uint32(_M)
    h: Words = np.uint32(_SEED) ^ lengths.astype(np.uint32)
    word_counts = lengths // 4
    for word in range(int(word_counts[0])):
        active = int(np.searchsorted(-word_counts, -word, side="left"))
        k: Words = words[starts[:active] + 4 * word] * m
        k ^= k >> np.uint32(_R)
        k *= m
        h[:active] = h[:active] * m ^ k
    rest = lengths % 4
    if rest.any():
        has_rest = np.flatnonzero(rest)
        tail = words[starts[has_rest] + 4 * word_counts[has_rest]]
        tail &= (np.uint32(1) << (rest[has_rest] * 8).astype(np.uint32)) - np.uint32(1)
        h[has_rest] = (h[has_rest] ^ tail) * m
    h ^= h >> np.uint32(13)
    h *= m
    h ^= h >> np.uint32(15)
    return h


def partitions_for_keys(keys: pa.LargeBinaryArray, num_partitions: int) -> npt.NDArray[np.int32]:
    """Return the partition of every key, -1 for null keys."""
    hashes = murmur2_array(keys)
    partitions: npt.NDArray[np.int32] = (hashes & np.int32(0x7FFFFFFF)) % np.int32(num_partitions)
    if keys.null_count:
        is_null: Any = keys.is_null().to_numpy(zero_copy_only=False)
        partitions[is_null] = -1
    return partitions


def partitions_of(keys: pa.Table, num_partitions: int) -> npt.NDArray[np.int32]:
    """Return the partitions of a typed topic's rows from a table of its key columns in order; -1 without a key."""
    return partitions_for_keys(encode_keys(keys, keys.column_names), num_partitions)
