"""JSON of Kafka producers into a typed topic, on one core.

The figure is the work of the broker, beside ``json.loads`` of each record. Our side checks row batches of 10,000 JSON
objects of 100 bytes, decodes them, and builds the columnar batches that the log stores. The peer decodes the same
objects as a Python consumer would, into an Arrow table.
"""

from __future__ import annotations

import contextlib
import json
import time
import uuid
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from benchmarks.harness import Benchmark, Context, Durability, Measure, Sample, Side
from millrace.config.topic import TopicConfig
from millrace.records import build_rows_batch_of_columns, decode_range
from millrace.schemas import parse_schema, serialize_schema
from millrace_broker.api.common.record_checks import check_bodies
from millrace_broker.log import ProducedBatches
from millrace_broker.metadata import RecordCodecs, SchemaVersion, TopicInfo

_BATCH_RECORDS = 10_000
_RECORDS_MAX = 1_000_000
_SETTINGS = "batches of 10,000 objects of 100 bytes, uncompressed, in memory: nothing to fsync"
_SCHEMA = parse_schema("id BIGINT NOT NULL, price DOUBLE, name STRING, is_new BOOLEAN")


@cache
def _batches(records: int) -> list[bytes]:
    batches = []
    for first in range(0, records, _BATCH_RECORDS):
        values = [
            f'{{"id":{number:09},"price":{number / 4},"is_new":true,"name":"'.replace(":0", ":1").encode()
            for number in range(first, min(first + _BATCH_RECORDS, records))
        ]
        padded = [value + b"n" * (98 - len(value)) + b'"}' for value in values]
        columns = pa.RecordBatch.from_pydict({"value": pa.array(padded, pa.binary())})
        batches.append(bytes(build_rows_batch_of_columns(columns, timestamps_ms=1)))
    return batches


def _ours(batches: list[bytes]) -> Iterator[pa.Table]:
    config = TopicConfig.load({"kafka.value.format": "json"})
    version = SchemaVersion(id=1, version=1, arrow_schema=serialize_schema(_SCHEMA))
    topic = TopicInfo(
        name="t", topic_id=uuid.UUID(int=1), partitions={}, overrides={}, config=config, schemas=(version,)
    )
    codecs = RecordCodecs(dict)
    for batch in batches:
        stored = check_bodies(codecs, topic, ProducedBatches(batch, config), 0).data
        for decoded in decode_range(pa.py_buffer(stored), 0, 2**62, lambda schema_id: _SCHEMA, verify=False):
            yield pa.Table.from_batches([decoded.columns])


def _peer(batches: list[bytes]) -> Iterator[pa.Table]:
    for batch in batches:
        for rows in decode_range(pa.py_buffer(batch), 0, 2**62, lambda schema_id: _SCHEMA):
            values = [json.loads(value) for value in rows.columns.column("value").to_pylist()]
            yield pa.Table.from_pylist(values, schema=_SCHEMA)


def _opened(decode: Callable[[list[bytes]], Iterator[pa.Table]]) -> Callable[[Context], Any]:
    @contextlib.contextmanager
    def open_side(context: Context) -> Iterator[Measure]:
        records = min(context.records, _RECORDS_MAX)
        batches = _batches(records)

        def measure() -> Sample:
            started = time.perf_counter()
            table = pa.concat_tables(decode(batches))
            seconds = time.perf_counter() - started
            sums = [pc.sum(table.column(name)).as_py() for name in ("id", "price")]
            return Sample(figure=records / seconds, answer=[table.num_rows, *sums])

        measure()
        yield measure

    return open_side


BENCHMARK = Benchmark(
    name="kafka_typed_in",
    title="JSON of Kafka producers to a typed topic's columns, 100-byte records, one core",
    unit="records/s",
    limit=500_000,
    durability=Durability.NOTHING_WRITTEN,
    ours=Side(
        what="the broker's checks of a batch with kafka.value.format=json", settings=_SETTINGS, open=_opened(_ours)
    ),
    peer=Side(what="json.loads of each value, Table.from_pylist", settings=_SETTINGS, open=_opened(_peer)),
)
