from __future__ import annotations

import subprocess
import sys

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from millrace.records import HEADERS_TYPE, headers_array
from millrace.records.arrays import (
    binary_array,
    int32_array,
    int64_array,
    int64_scalar,
    repeated_int64,
    without_columns,
)

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=4)


@given(st.lists(st.none() | st.binary(max_size=9), max_size=40))
def test_binary_arrays_are_what_arrow_would_build(values: list[bytes | None]) -> None:
    built = binary_array(values)
    built.validate(full=True)
    assert built.equals(pa.array(values, pa.binary()))
    assert built.null_count == values.count(None)


@given(st.lists(st.integers(-(2**31), 2**31 - 1)), st.lists(st.integers(-(2**63), 2**63 - 1)))
def test_integer_arrays_are_what_arrow_would_build(small: list[int], large: list[int]) -> None:
    assert int32_array(small).equals(pa.array(small, pa.int32()))
    assert int64_array(large).equals(pa.array(large, pa.int64()))


@given(st.lists(st.lists(st.tuples(TEXT, st.none() | st.binary(max_size=4)), max_size=3), max_size=9))
def test_headers_are_what_arrow_would_build(headers: list[list[tuple[str, bytes | None]]]) -> None:
    built = headers_array(headers)
    built.validate(full=True)
    expected = [[{"key": key, "value": value} for key, value in record] for record in headers]
    assert built.equals(pa.array(expected, HEADERS_TYPE))


@given(st.integers(-(2**63), 2**63 - 1), st.integers(0, 9))
def test_constants_are_what_arrow_would_build(value: int, count: int) -> None:
    assert int64_scalar(value).equals(pa.scalar(value, pa.int64()))
    assert repeated_int64(value, count).equals(pa.array([value] * count, pa.int64()))


def test_rows_without_columns_are_counted() -> None:
    assert (without_columns(7).num_rows, without_columns(7).num_columns) == (7, 0)


def test_nothing_a_broker_does_with_batches_imports_pandas() -> None:
    program = """
import sys
import pyarrow as pa
from millrace.records import *
values = pa.RecordBatch.from_arrays([pa.nulls(3, pa.binary())], names=["value"])
headers = headers_array([(("h", b"x"),), (), ()])
row = build_rows_batch([Record(value=b"v", headers=(("h", None),)), Record(timestamp_ms=5)])
for compression in (Compression.NONE, Compression.LZ4):
    column = build_columnar_batch(
        values, timestamps_ms=pa.arange(1, 4), offsets=pa.arange(0, 6, 2), headers=headers, compression=compression
    )
    for batch in (row, column):
        header = read_header(batch)
        decoded = validate_batch(batch, 0, header, lambda _: None)
        decoded.slice(1, 2).offsets()
        recompress_batch(batch, 0, header, lambda _: None, Compression.ZSTD)
        list(decode_range(pa.py_buffer(batch), 0, 9, lambda _: None, []))
print("pandas" in sys.modules)
"""
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "False"
