"""Integers of many records in arrays, compared with one integer after the other."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.records.varint import write_varint
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
