"""Tests of columnar batches as rows for Kafka's consumers.

Batches of rows are passed on unchanged.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter

import pyarrow as pa
import pytest

from millrace.errors import UnsupportedForFormatError
from millrace.records import (
    Compression,
    Record,
    build_columnar_batch,
    build_rows_batch,
    read_rows,
    scan_headers,
)
from millrace_broker.kafka_api.row_batches import RowBatches, RowConversion
from millrace_broker.runtime import Executors

from ....integration.waiting import STALL_S

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


def test_two_of_many_batches_are_converted_at_the_same_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("millrace_broker.kafka_api.row_batches._AT_ONCE", 2)
    both_run = threading.Barrier(2, timeout=STALL_S)
    running = Counter[str]()

    def rows_of(batch: memoryview) -> bytes:
        running["now"] += 1
        running["most"] = max(running["most"], running["now"])
        both_run.wait()
        running["now"] -= 1
        return bytes(batch)

    async def convert() -> None:
        batches, executors = RowBatches(), Executors(8, time.monotonic)
        try:
            conversion = RowConversion("barrier", rows_of)
            await asyncio.gather(
                *(batches.as_rows(executors, _TOPIC, number, _columnar(b"a"), conversion) for number in range(6))
            )
        finally:
            executors.close()

    asyncio.run(convert())
    assert running["most"] == 2


def test_a_batch_that_waits_for_its_turn_is_not_converted_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("millrace_broker.kafka_api.row_batches._AT_ONCE", 1)
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
