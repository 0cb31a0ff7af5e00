from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.errors import InvalidRecordError, InvalidTimestampError, MessageTooLargeError, MillraceError
from millrace.records import (
    Compression,
    Record,
    TimestampType,
    build_rows_batch,
    build_rows_batch_of_columns,
    headers_array,
)
from millrace.records.columnar import HEADERS_TYPE

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=5)
BYTES = st.none() | st.sampled_from([0, 1, 63, 64, 127, 128, 300]).map(bytes) | st.binary(max_size=9)
RECORDS = st.lists(
    st.builds(
        Record,
        key=BYTES,
        value=BYTES,
        headers=st.just(()) | st.lists(st.tuples(TEXT, BYTES), max_size=3).map(tuple),
        timestamp_ms=st.integers(-1, 2**63 - 1),
        offset=st.integers(0, 2**31 - 1),
    ),
    max_size=30,
    unique_by=lambda record: record.offset,
).map(lambda records: sorted(records, key=lambda record: record.offset))


def columns_of(records: Sequence[Record], *, slack: int = 0) -> tuple[pa.RecordBatch, dict[str, Any]]:
    """Return the records as columns. With ``slack`` they are a slice in the middle of larger columns."""
    slacks = [Record(key=b"-", value=b"-", headers=(("-", None),))] * slack
    padded = [*slacks, *records, *slacks]
    fields = {
        "key": pa.array([record.key for record in padded], pa.binary()),
        "value": pa.array([record.value for record in padded], pa.binary()),
    }
    beside = {
        "timestamps_ms": pa.array([record.timestamp_ms for record in padded], pa.int64()),
        "offsets": pa.array([record.offset for record in padded], pa.int64()),
        "headers": headers_array([record.headers for record in padded]),
    }
    count = len(records)
    sliced = {name: array.slice(slack, count) for name, array in beside.items()}
    return pa.record_batch(fields).slice(slack, count), sliced


@given(
    RECORDS,
    st.sampled_from(Compression),
    st.sampled_from(TimestampType),
    st.none() | st.integers(0, 2**62),
    st.sampled_from([0, 3]),
)
def test_columns_are_written_as_their_records_are(
    records: list[Record], compression: Compression, type_: TimestampType, horizon: int | None, slack: int
) -> None:
    columns, beside = columns_of(records, slack=slack)
    options: dict[str, Any] = {
        "compression": compression,
        "timestamp_type": type_,
        "delete_horizon_ms": horizon,
        "producer_id": 5,
        "producer_epoch": 1,
        "base_sequence": 7,
        "is_transactional": True,
        "leader_epoch": 3,
        "last_offset": 2**31 - 1,
    }
    base = records[0].offset if records else 0
    expected = build_rows_batch(records, base_offset=None, **options)
    assert build_rows_batch_of_columns(columns, base_offset=base, **beside, **options) == expected


@given(st.lists(BYTES, min_size=1, max_size=10), st.integers(-1, 2**63 - 1), st.integers(0, 2**62))
def test_values_alone_are_enough(values: list[bytes | None], timestamp: int, base: int) -> None:
    columns = pa.record_batch({"value": pa.array(values, pa.binary())})
    batch = build_rows_batch_of_columns(columns, timestamps_ms=timestamp, base_offset=base)
    assert batch == build_rows_batch([Record(value=v, timestamp_ms=timestamp) for v in values], base_offset=base)


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"offsets": pa.array([4, 4])}, InvalidRecordError),
        ({"offsets": pa.array([4, 5]), "base_offset": 5}, InvalidRecordError),
        ({"offsets": pa.array([0, 2**31])}, InvalidRecordError),
        ({"offsets": pa.array([0, None])}, InvalidRecordError),
        ({"last_offset": 0}, InvalidRecordError),
        ({"timestamps_ms": pa.array([5, -2])}, InvalidTimestampError),
        ({"timestamps_ms": pa.array([5, None])}, InvalidRecordError),
        ({"timestamps_ms": pa.array([5])}, InvalidRecordError),
        ({"headers": headers_array([()])}, InvalidRecordError),
        ({"producer_id": 5}, InvalidRecordError),
    ],
)
def test_impossible_batches_are_not_written(options: dict[str, Any], error: type[MillraceError]) -> None:
    columns = pa.record_batch({"value": pa.array([b"a", b"b"])})
    with pytest.raises(error):
        build_rows_batch_of_columns(columns, **options)


def test_no_rows_are_a_batch_only_to_remember_offsets() -> None:
    nothing = pa.record_batch({"value": pa.array([], pa.binary())})
    with pytest.raises(InvalidRecordError, match="at least one record"):
        build_rows_batch_of_columns(nothing)
    assert len(build_rows_batch_of_columns(nothing, base_offset=4, last_offset=9)) == 61


def test_a_batch_of_more_than_2_gib_is_not_written() -> None:
    gib = pa.py_buffer(np.zeros(2**30, np.uint8))  # memory that is never touched
    value = pa.Array.from_buffers(pa.binary(), 1, [None, pa.py_buffer(np.array([0, 2**30], np.int32)), gib])
    with pytest.raises(MessageTooLargeError, match="send fewer records"):
        build_rows_batch_of_columns(pa.record_batch({"key": value, "value": value}))


def test_a_header_without_a_key_is_not_written() -> None:
    keyless = pa.array([[{"key": None, "value": b"v"}]], HEADERS_TYPE)
    with pytest.raises(InvalidRecordError, match="a header without a key"):
        build_rows_batch_of_columns(pa.record_batch({"value": pa.array([b"v"])}), headers=keyless)
