from __future__ import annotations

import hashlib
import random

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace_broker.log.cleaning.key_hashes import KeyHasher
from millrace_broker.log.cleaning.offset_map import OffsetMap

keys_ = st.one_of(st.none(), st.binary(max_size=12), st.binary(min_size=240, max_size=300))


@given(st.lists(keys_, min_size=1, max_size=60), st.booleans(), st.integers(0, 2**32))
def test_keys_are_equal_exactly_when_their_hashes_are(keys: list[bytes | None], is_large: bool, seed: int) -> None:
    array = pa.array(keys, pa.large_binary() if is_large else pa.binary())
    hashes = [tuple(pair) for pair in KeyHasher(seed).hash(array).tolist()]
    by_key = {key: pair for key, pair in zip(keys, hashes, strict=True) if key is not None}
    assert len(set(by_key.values())) == len(by_key)
    assert all(by_key[key] == pair for key, pair in zip(keys, hashes, strict=True) if key is not None)
    sliced = KeyHasher(seed).hash(array[1:]).tolist()
    assert [tuple(p) for p, k in zip(sliced, keys[1:], strict=True) if k is not None] == [
        p for p, k in zip(hashes[1:], keys[1:], strict=True) if k is not None
    ]


def test_zeros_at_the_end_and_lengths_count() -> None:
    keys = [b"a" * n + b"\x00" * m for n in range(9) for m in range(9)]
    hashes = KeyHasher().hash(pa.array(keys, pa.binary()))
    assert len({tuple(pair) for pair in hashes.tolist()}) == len(set(keys))


def multilinear(key: bytes, seed: int) -> list[int]:
    """Return the hash of a key by the definition of the family, which takes 32 bits of each of four sums."""
    generator = np.random.default_rng(seed)
    coefficients = generator.integers(0, 2**64, (256 // 4 + 2, 4), dtype=np.uint64).tolist()
    if len(key) > 256:
        digest = hashlib.blake2b(key, digest_size=16, key=generator.bytes(32)).digest()
        return [int.from_bytes(half, "little") for half in (digest[:8], digest[8:])]
    factors = [1, len(key), *(int.from_bytes(key[at : at + 4], "little") for at in range(0, len(key), 4))]
    lanes = [
        sum(factor * row[lane] for factor, row in zip(factors, coefficients, strict=False)) % 2**64 >> 32
        for lane in range(4)
    ]
    return [lanes[0] << 32 | lanes[1], lanes[2] << 32 | lanes[3]]


@pytest.mark.parametrize("type_", [pa.binary(), pa.large_binary()])
@pytest.mark.parametrize("sizes", [[0], [3], [256], [257, 5], [*range(12), 255, 256, 257, 300], [8, 8], [300, 400]])
def test_hashes_are_those_of_the_family(sizes: list[int], type_: pa.DataType) -> None:
    keys = [random.Random(size).randbytes(size) for size in sizes]
    found = KeyHasher(5).hash(pa.array([b"before", *keys, b"after"], type_)[1:-1])
    assert found.tolist() == [multilinear(key, 5) for key in keys]


def test_null_keys_change_no_other_hash() -> None:
    keys = [b"a", None, b"bcdef", None, None, b"g" * 300, b""] * 3
    for first in range(10):
        found = KeyHasher(5).hash(pa.array(keys, pa.binary())[first:]).tolist()
        assert [pair for pair, key in zip(found, keys[first:], strict=True) if key is not None] == [
            multilinear(key, 5) for key in keys[first:] if key is not None
        ]
    assert KeyHasher(5).hash(pa.array([], pa.binary())).shape == (0, 2)


def test_two_hashers_give_a_key_different_hashes() -> None:
    array = pa.array([b"key"])
    assert KeyHasher().hash(array).tolist() != KeyHasher().hash(array).tolist()


@given(
    st.lists(st.lists(st.integers(0, 40), max_size=30), max_size=6),
    st.integers(min_value=1, max_value=60),
    st.booleans(),
)
def test_a_map_is_what_a_dict_would_be(chunks: list[list[int]], slots: int, knows_size: bool) -> None:
    hasher = KeyHasher(7)
    total = sum(map(len, chunks))
    offset_map = OffsetMap(slots, 0.9, expected_max=max(total, 1) if knows_size else None)
    model: dict[int, int] = {}
    offset = 0
    for chunk in chunks:
        hashes = hasher.hash(pa.array([b"%d" % key for key in chunk], pa.binary()))
        taken = offset_map.put(hashes, np.arange(offset, offset + len(chunk)))
        expected = 0
        for key in chunk:
            if len(model) >= offset_map.capacity:
                break
            model[key] = offset + expected
            expected += 1
        assert taken == expected
        offset += len(chunk)
    found = offset_map.find(hasher.hash(pa.array([b"%d" % key for key in range(41)])))
    assert {key: at for key, at in enumerate(found.tolist()) if at >= 0} == model
    assert len(offset_map) == len(model)


@pytest.mark.parametrize("slots", range(1, 130))
def test_maps_of_any_size_end_each_search(slots: int) -> None:
    hasher, offset_map = KeyHasher(slots), OffsetMap(slots, 1.0)
    assert offset_map.capacity == slots
    hashes = hasher.hash(pa.array([b"%d" % number for number in range(2 * slots)]))
    assert offset_map.put(hashes, np.arange(2 * slots)) == slots
    assert offset_map.find(hashes).tolist() == [*range(slots), *[-1] * slots]
    assert (len(offset_map), offset_map.utilization, offset_map.latest_offset) == (slots, 1.0, slots - 1)


def test_the_latest_offset_is_that_of_the_last_added_key() -> None:
    hasher, offset_map = KeyHasher(3), OffsetMap(4, 0.5)
    assert (offset_map.capacity, offset_map.latest_offset) == (2, -1)
    hashes = hasher.hash(pa.array([b"a", b"a", b"b", b"b", b"c"]))
    assert offset_map.put(hashes[:0], np.arange(0)) == 0
    assert offset_map.latest_offset == -1
    assert offset_map.put(hashes[:2], np.array([10, 11])) == 2
    assert offset_map.put(hashes[2:], np.array([12, 13, 14])) == 1, "a full map does not take even a key that it has"
    assert offset_map.latest_offset == 12
    assert offset_map.find(hashes).tolist() == [11, 11, 12, 12, -1]
    assert OffsetMap(1, 0.1).capacity == 1


def test_a_key_that_the_map_has_takes_no_room() -> None:
    hasher, offset_map = KeyHasher(3), OffsetMap(4, 0.75)
    hashes = hasher.hash(pa.array([b"a", b"b", b"c", b"d"]))
    assert offset_map.put(hashes[:1], np.array([0])) == 1
    assert offset_map.put(hashes, np.array([1, 2, 3, 4])) == offset_map.capacity == 3
    assert offset_map.find(hashes).tolist() == [1, 2, 3, -1]


@pytest.mark.parametrize("load_factor", [0.5, 0.9, 0.99])
def test_a_full_map_still_finds_everything(load_factor: float) -> None:
    hasher, offset_map = KeyHasher(3), OffsetMap(2000, load_factor)
    keys = [random.Random(n).randbytes(9) for n in range(offset_map.capacity)]
    hashes = hasher.hash(pa.array(keys, pa.binary()))
    assert offset_map.put(hashes, np.arange(len(keys))) == len(keys)
    assert offset_map.utilization == 1
    assert offset_map.find(hashes).tolist() == list(range(len(keys)))
    assert offset_map.find(hasher.hash(pa.array([b"absent", b"none"]))).tolist() == [-1, -1]
    assert offset_map.put(hashes[:1], np.array([len(keys)])) == 0
