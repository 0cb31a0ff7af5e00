"""Tests of integers of many records in arrays.

The results are compared with those of reading one integer after the other.
"""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.errors import CorruptBatchError
from millrace.records.varint import read_varint, write_varint
from millrace.records.varint_arrays import VarintTable, join_tables, read_varints

_INTEGERS = st.one_of(st.integers(-70, 70), st.integers(-(2**63), 2**63 - 1))


def _one_by_one(rows: list[tuple[int, ...]]) -> list[bytes]:
    return [b"".join(map(write_varint, row)) for row in rows]


def _joined(rows: list[tuple[int, ...]]) -> tuple[bytes, list[int]]:
    data, sizes = join_tables([VarintTable(np.array(column, np.int64)) for column in zip(*rows, strict=True)])
    return data.tobytes(), sizes.tolist()


@given(st.lists(st.tuples(_INTEGERS, _INTEGERS, st.just(0)), min_size=1, max_size=100))
def test_tables_are_joined_row_by_row(rows: list[tuple[int, ...]]) -> None:
    expected = _one_by_one(rows)
    assert _joined(rows) == (b"".join(expected), [len(row) for row in expected])


@pytest.mark.parametrize("period", [1, 2, 3, 64, 1000])
def test_runs_of_equal_sizes_end_anywhere(period: int) -> None:
    rows = [(number, (number // period) % 2 * 100) for number in range(200)]
    expected = _one_by_one(rows)
    assert _joined(rows) == (b"".join(expected), [len(row) for row in expected])


@given(st.lists(_INTEGERS, min_size=1))
def test_written_integers_are_read_again(values: list[int]) -> None:
    table = VarintTable(np.array(values, np.int64))
    data, sizes = join_tables([table])
    ends = np.cumsum(sizes)
    found, following = read_varints(data, ends - sizes, 64)
    assert found.tolist() == values
    assert following.tolist() == ends.tolist()


@given(st.lists(st.sampled_from([0, 1, 0x7F, 0x80, 0x81, 0xFF]), min_size=1, max_size=40), st.sampled_from([32, 64]))
def test_any_encodings_are_read_as_one_after_the_other(data: list[int], bits: int) -> None:
    encoded = bytes(data) + bytes(11)
    expected = []
    for position in range(len(data)):
        try:
            expected.append(read_varint(encoded, position, bits))
        except CorruptBatchError:
            with pytest.raises(CorruptBatchError, match="too long"):
                read_varints(np.frombuffer(encoded, np.uint8), np.array([position]), bits)
            return
    found, following = read_varints(np.frombuffer(encoded, np.uint8), np.arange(len(data)), bits)
    assert list(zip(found.tolist(), following.tolist(), strict=True)) == expected


@pytest.mark.parametrize(("bits", "encoded"), [(32, b"\xff" * 4 + b"\x7f"), (64, b"\xff" * 9 + b"\x7f")])
def test_bits_beyond_the_width_are_dropped(bits: int, encoded: bytes) -> None:
    found, following = read_varints(np.frombuffer(encoded, np.uint8), np.array([0]), bits)
    assert (found.tolist(), following.tolist()) == ([-(2 ** (bits - 1))], [len(encoded)])
