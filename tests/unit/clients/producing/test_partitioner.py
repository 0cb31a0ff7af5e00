"""Tests of the vectorised hash, which equals the hash of each key."""

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.clients.producing.partitioner import murmur2_array, partitions_for_keys

from ....murmur2 import murmur2, partition_for_key

_keys = st.lists(st.binary(max_size=40), max_size=50)


@given(_keys, st.integers(0, 10))
def test_column_and_single_keys_agree(keys: list[bytes], start: int) -> None:
    column = pa.array(keys, pa.large_binary())
    assert murmur2_array(column).tolist() == [murmur2(key) for key in keys]
    assert murmur2_array(column.slice(start)).tolist() == [murmur2(key) for key in keys[start:]]


@pytest.mark.parametrize(
    ("key", "expected"),
    [("027d5343", 2**31 - 1), ("a7d6506c", -(2**31)), ("a5d4305c", -1), ("e3871844", 0)],
)
def test_hashes_are_signed(key: str, expected: int) -> None:
    assert murmur2(bytes.fromhex(key)) == expected
    assert murmur2_array(pa.array([bytes.fromhex(key)], pa.large_binary())).tolist() == [expected]
    assert partition_for_key(bytes.fromhex(key), 2**31) == expected % 2**31


@given(st.lists(st.none() | st.binary(max_size=9)), st.integers(1, 1000))
def test_null_keys_have_no_partition(keys: list[bytes | None], count: int) -> None:
    expected = [-1 if key is None else partition_for_key(key, count) for key in keys]
    assert partitions_for_keys(pa.array(keys, pa.large_binary()), count).tolist() == expected


@given(st.lists(st.binary(min_size=7, max_size=7), min_size=1))
def test_keys_of_equal_length_have_the_hashes_of_single_keys(keys: list[bytes]) -> None:
    assert murmur2_array(pa.array(keys, pa.large_binary())).tolist() == [murmur2(key) for key in keys]
