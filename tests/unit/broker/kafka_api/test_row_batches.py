"""Tests of columnar batches as rows for Kafka's consumers.

Batches of rows are passed on unchanged.
"""

from __future__ import annotations

import asyncio
import threading
import time

import pyarrow as pa
import pytest

from millrace.errors import CorruptBatchError, UnsupportedForFormatError
from millrace.records import (
    Compression,
    Record,
    build_columnar_batch,
    build_rows_batch,
    read_rows,
    rows_of_opaque,
    scan_headers,
)
from millrace_broker.kafka_api.row_batches import RowBatches, RowConversion
from millrace_broker.runtime import Executors

_TOPIC = b"t" * 16


def _columnar(*values: bytes, compression: Compression = Compression.NONE) -> bytes:
    columns = pa.RecordBatch.from_pydict({"value": pa.array(values, pa.binary())})
    return bytes(build_columnar_batch(columns, timestamps_ms=5, compression=compression))


def _rows(*values: bytes) -> bytes:
    return bytes(build_rows_batch([Record(key=None, value=value, timestamp_ms=5) for value in values]))


def _converted(batches: RowBatches, records: bytes) -> bytes:
    async def convert() -> bytes:
        executors = Executors(1, time.monotonic)
        try:
            return b"".join(await batches.as_rows(executors, _TOPIC, 0, records))
        finally:
            executors.close()

    return asyncio.run(convert())


def _values(records: bytes) -> list[bytes | None]:
    return [
        record.value for position, header in scan_headers(records) for record in read_rows(records, position, header)
    ]


def test_batches_of_rows_are_the_same_bytes() -> None:
    records = _rows(b"a", b"b") + _rows(b"c")
    assert _converted(RowBatches(), records) == records


@pytest.mark.parametrize("compression", [Compression.NONE, Compression.LZ4, Compression.ZSTD])
def test_columnar_batches_between_rows_become_rows_in_their_place(compression: Compression) -> None:
    records = _rows(b"a") + _columnar(b"b", b"c", compression=compression) + _rows(b"d") + _columnar(b"e")
    found = _converted(RowBatches(), records)
    assert not any(header.is_columnar for _, header in scan_headers(found))
    assert _values(found) == [b"a", b"b", b"c", b"d", b"e"]
    assert found.startswith(_rows(b"a"))


def test_a_batch_is_converted_once() -> None:
    batches, records = RowBatches(), _columnar(b"x" * 1000)
    first = _converted(batches, records)
    held = batches.held_bytes
    assert held == len(first)
    assert _converted(batches, records) == first
    assert batches.held_bytes == held


def test_one_batch_is_converted_at_a_time() -> None:
    running = threading.Lock()
    converted: list[bytes] = []

    def rows_of(batch: memoryview) -> bytes:
        assert running.acquire(blocking=False), "two conversions run at the same time"
        try:
            converted.append(bytes(batch))
            return rows_of_opaque(batch)
        finally:
            running.release()

    async def convert() -> None:
        batches, executors = RowBatches(), Executors(8, time.monotonic)
        try:
            conversion = RowConversion("alone", rows_of)
            await asyncio.gather(
                *(batches.as_rows(executors, _TOPIC, number, _columnar(b"a"), conversion) for number in range(40))
            )
        finally:
            executors.close()

    asyncio.run(convert())
    assert len(converted) == 40


def test_a_damaged_batch_is_refused() -> None:
    damaged = bytearray(_columnar(b"value"))
    damaged[damaged.index(b"value")] ^= 1
    with pytest.raises(CorruptBatchError, match="fails its checksum"):
        _converted(RowBatches(), bytes(damaged))


def test_a_batch_that_waits_for_its_turn_is_not_converted_again() -> None:
    converted: list[bytes] = []

    def rows_of(batch: memoryview) -> bytes:
        converted.append(bytes(batch))
        return converted[-1]

    async def convert() -> None:
        batches, executors = RowBatches(), Executors(8, time.monotonic)
        conversion = RowConversion("counted", rows_of)
        try:
            found = await asyncio.gather(
                *(batches.as_rows(executors, _TOPIC, 0, _columnar(b"a"), conversion) for _ in range(3))
            )
        finally:
            executors.close()
        assert found == [converted] * 3

    asyncio.run(convert())
    assert len(converted) == 1


def test_the_batches_used_least_recently_are_dropped() -> None:
    batches = RowBatches(bytes_max=3000)
    for number in range(20):
        _converted(batches, _columnar(b"%d" % number * 500))
        assert batches.held_bytes <= 3000
    assert batches.held_bytes > 0


def test_batches_of_typed_topics_have_no_rows() -> None:
    columns = pa.RecordBatch.from_pydict({"price": pa.array([1.5])})
    records = bytes(build_columnar_batch(columns, timestamps_ms=5, schema_id=7))
    with pytest.raises(UnsupportedForFormatError):
        _converted(RowBatches(), records)
