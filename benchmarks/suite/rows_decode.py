"""Decoding of Kafka's row batches to Arrow, beside aiokafka's reader in C.

Our side is ``decode_range`` in Python and numpy. The batches are those of a Kafka producer with its default
``batch.size``, uncompressed, in memory. Both sides verify the checksums and make Arrow batches of key, value, offset
and timestamp on one core. Our side makes one of all batches that it decodes together, and the peer one of each batch.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from benchmarks import data
from benchmarks.harness import Benchmark, Context, Durability, Measure, Sample, Side
from benchmarks.workspace import BenchmarkError
from millrace.records import build_rows_batch_of_columns, decode_range

_BATCH_RECORDS = 145  # as many as a batch.size of 16,384 bytes holds
_RECORDS_MAX = 1_000_000
_SETTINGS = "batches of 145 records, uncompressed, in memory: nothing to fsync"


@cache
def _log(records: int) -> bytes:
    parts = []
    (values,) = data.table(0, records).select(["value"]).combine_chunks().to_batches()
    for first in range(0, records, _BATCH_RECORDS):
        columns = values.slice(first, _BATCH_RECORDS)
        times = pa.array(range(first, first + columns.num_rows), pa.int64())
        parts.append(build_rows_batch_of_columns(columns, base_offset=first, timestamps_ms=times))
    return b"".join(parts)


def _no_schema(schema_id: int) -> pa.Schema:
    raise BenchmarkError(f"schema id {schema_id} in a log of rows")


def _ours(log: bytes) -> Iterator[pa.RecordBatch]:
    for batch in decode_range(pa.py_buffer(log), 0, 2**62, _no_schema):
        columns = [*batch.columns.columns, batch.offsets(), batch.timestamps_ms()]
        yield pa.record_batch(columns, ["key", "value", "offset", "timestamp"])


def _peer(log: bytes) -> Iterator[pa.RecordBatch]:
    from aiokafka.record._crecords import MemoryRecords

    reader = MemoryRecords(log)
    while (batch := reader.next_batch()) is not None:
        if not batch.validate_crc():
            raise BenchmarkError("the peer finds a wrong checksum")
        records = list(batch)
        yield pa.record_batch(
            {
                "key": pa.array([record.key for record in records], pa.binary()),
                "value": pa.array([record.value for record in records], pa.binary()),
                "offset": pa.array([record.offset for record in records], pa.int64()),
                "timestamp": pa.array([record.timestamp for record in records], pa.int64()),
            }
        )


def _opened(decode: Callable[[bytes], Iterator[pa.RecordBatch]]) -> Callable[[Context], Any]:
    @contextlib.contextmanager
    def open_side(context: Context) -> Iterator[Measure]:
        records = min(context.records, _RECORDS_MAX)
        log = _log(records)

        def measure() -> Sample:
            started = time.perf_counter()
            table = pa.Table.from_batches(decode(log))
            seconds = time.perf_counter() - started
            sums = [pc.sum(column).as_py() for column in (pc.binary_length(table["value"]), *table.columns[2:])]
            return Sample(figure=records / seconds, answer=[table.num_rows, *sums])

        measure()
        yield measure

    return open_side


BENCHMARK = Benchmark(
    name="rows_decode",
    title="Decode 100-byte Kafka v2 records to Arrow, one core",
    unit="records/s",
    limit=2_000_000,
    durability=Durability.NOTHING_WRITTEN,
    ours=Side(what="millrace.records.decode_range", settings=_SETTINGS, open=_opened(_ours)),
    peer=Side(
        what="aiokafka's C reader, pyarrow.array of its records",
        settings=_SETTINGS,
        open=_opened(_peer),
    ),
)
