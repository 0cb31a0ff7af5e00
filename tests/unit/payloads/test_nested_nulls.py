"""Tests of the search for nulls within nested columns. Its reference is the check of a producer's table."""

from __future__ import annotations

from typing import Any

import hypothesis.strategies as st
import pyarrow as pa
import pyarrow.types as pat
import pytest
from hypothesis import given, settings

from millrace.errors import SchemaMismatchError
from millrace.payloads.nested_nulls import note_nulls_within
from millrace.schemas import parse_ddl
from millrace.schemas.conform import conform

_COLUMNS = (
    "c STRUCT<p: INT NOT NULL, q: STRING>",
    "c STRUCT<p: STRUCT<r: INT NOT NULL, s: INT NOT NULL>, q: INT NOT NULL>",
    "c ARRAY<STRUCT<p: INT NOT NULL>>",
    "c MAP<STRING, STRUCT<p: ARRAY<STRUCT<x: INT NOT NULL>> NOT NULL>>",
    "c MAP<STRING, INT>",
)


def _values(data_type: pa.DataType) -> st.SearchStrategy[Any]:
    if pat.is_struct(data_type):
        present: st.SearchStrategy[Any] = st.fixed_dictionaries({each.name: _values(each.type) for each in data_type})
    elif pat.is_list(data_type):
        present = st.lists(_values(data_type.value_type), max_size=3)
    elif pat.is_map(data_type):
        present = st.dictionaries(st.sampled_from("ab"), _values(data_type.item_type)).map(lambda each: [*each.items()])
    else:
        present = st.just(1) if pat.is_integer(data_type) else st.just("s")
    return st.one_of(st.none(), present, present, present)


def _reference(array: pa.Array, column: pa.Field) -> str | None:
    try:
        conform(pa.table({"c": array}), pa.schema([column]))
    except SchemaMismatchError as error:
        return error.message.replace(", row 0", "")
    return None


@pytest.mark.parametrize("ddl", _COLUMNS)
@settings(max_examples=40, deadline=None)
@given(data=st.data(), cut=st.integers(0, 2))
def test_rows_and_texts_are_those_of_the_check_of_each_row(ddl: str, data: st.DataObject, cut: int) -> None:
    [column] = parse_ddl(ddl)
    rows = data.draw(st.lists(_values(column.type), min_size=1, max_size=12))
    array = pa.array(rows, column.type).slice(cut)
    found: dict[int, str] = {}
    note_nulls_within(array, column, lambda row, text: found.setdefault(row, text) and None)
    expected = {row: _reference(array.slice(row, 1), column) for row in range(len(array))}
    assert found == {row: text for row, text in expected.items() if text is not None}
