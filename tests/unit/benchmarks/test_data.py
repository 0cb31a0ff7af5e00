"""Tests of the benchmarks' data set.

The tests check its sizes, both forms of its records and its chunks.
"""

from __future__ import annotations

import io
import json

import fastavro
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from benchmarks import data


@pytest.mark.parametrize("first", [0, 999_990, 9_999_000])
def test_every_value_is_json_of_exactly_100_bytes_with_the_typed_columns(first: int) -> None:
    table = data.table(first, 1000)
    assert pc.unique(pc.binary_length(table["value"])).to_pylist() == [data.RECORD_BYTES]
    for row in table.to_pylist():
        assert json.loads(row["value"]) == {name: row[name] for name in data.TYPED_SCHEMA.names}
        assert row["key"].decode() == row["word"]
        assert row["timestamp"] == row["ts"]


def test_records_do_not_depend_on_the_chunks_they_are_made_in() -> None:
    chunks = pa.concat_tables(data.tables(1000, chunk_rows=333))
    assert chunks.combine_chunks().equals(data.table(0, 1000).combine_chunks())


def test_the_typed_columns_have_the_declared_types() -> None:
    assert data.table(0, 1).select(data.TYPED_SCHEMA.names).schema.equals(data.TYPED_SCHEMA)


def test_words_are_spread_evenly() -> None:
    counts = pc.value_counts(data.table(0, 200_000)["word"]).field("counts").to_pylist()
    assert len(counts) == data.WORDS
    assert min(counts) > 120
    assert max(counts) < 290


def test_other_numbers_of_words_change_the_words_alone() -> None:
    few, many = data.table(0, 100), data.table(0, 100, 1_000_000)
    assert len(set(many["word"].to_pylist())) == 100
    assert pc.unique(pc.binary_length(many["value"])).to_pylist() == [data.RECORD_BYTES]
    unchanged = ["timestamp", "amount", "ts", "id"]
    assert many.select(unchanged).equals(few.select(unchanged))


def test_avro_values_hold_the_columns_and_may_be_read_in_part() -> None:
    table = data.table(7, 100)
    written = data.with_avro_values(table)
    schema = fastavro.parse_schema(json.loads(data.avro_schema()))
    few = fastavro.parse_schema(json.loads(data.avro_schema(["word", "amount"])))
    values = written["value"].to_pylist()
    read = [fastavro.schemaless_reader(io.BytesIO(each), schema, None) for each in values]
    assert read == table.select(data.TYPED_SCHEMA.names).to_pylist()
    read = [fastavro.schemaless_reader(io.BytesIO(each), schema, few) for each in values]
    assert read == table.select(["word", "amount"]).to_pylist()
    assert written.drop_columns("value") == table.drop_columns("value")
