"""Tests of columnar batches of typed topics as batches of rows."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

import pyarrow as pa
import pytest

from millrace.config.topic import KafkaKeyFormat, KafkaValueFormat
from millrace.payloads import PayloadFormat, RecordCodec
from millrace.records import build_columnar_batch, read_rows, scan_headers
from millrace_broker.api.common.typed_rows import rows_of_columns

_MIB = 2**20
_SCHEMA = pa.schema([("items", pa.list_(pa.struct([("a_long_name_of_a_field", pa.bool_())])))])
_FORMAT = PayloadFormat(value=KafkaValueFormat.JSON, key=KafkaKeyFormat.IGNORE)


def _rows_of(lengths: list[int]) -> list[bytes]:
    """Convert a batch whose rows have lists of these lengths, of which each item has some 30 bytes of JSON."""
    items: list[list[dict[str, Any]]] = [[{"a_long_name_of_a_field": True}] * length for length in lengths]
    columns = pa.RecordBatch.from_pydict({"items": items}, schema=_SCHEMA)
    codec = RecordCodec(_SCHEMA, (), _FORMAT, {}.__getitem__)
    batch = bytes(build_columnar_batch(columns, timestamps_ms=5, schema_id=1))
    return list(rows_of_columns(codec, lambda _: _SCHEMA, memoryview(batch)))


def _lengths(batches: list[bytes]) -> list[int]:
    records = [
        record for rows in batches for at, header in scan_headers(rows) for record in read_rows(rows, at, header)
    ]
    return [len(json.loads(record.value or b"")["items"]) for record in records]


@pytest.mark.parametrize(
    "lengths",
    [[0] * 100 + [100] * 2000, [100] * 2000 + [0] * 100, [0] * 6000 + [30_000] * 8 + [0] * 6000],
    ids=["empty_rows_first", "empty_rows_last", "few_large_rows"],
)
def test_no_batch_of_rows_is_much_larger_than_others_where_rows_differ(lengths: list[int]) -> None:
    batches = _rows_of(lengths)
    assert _lengths(batches) == lengths
    headers = [header for rows in batches for _, header in scan_headers(rows)]
    assert all(before.next_offset == after.base_offset for before, after in pairwise(headers))
    assert (headers[0].base_offset, headers[-1].last_offset) == (0, len(lengths) - 1)
    assert sum(map(len, batches)) > 5 * _MIB
    assert max(map(len, batches)) <= 2.1 * _MIB
    assert len(batches) <= 3 * sum(map(len, batches)) / (_MIB / 2)
