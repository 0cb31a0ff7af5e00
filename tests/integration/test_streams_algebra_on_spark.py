"""Tests of operators on Spark.

The stream and the batch give the test driver's results. The operators are tables, joins, sessions, suppression and
processors.
"""

from __future__ import annotations

import os
import random
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from millrace_streams import (
    StreamsBuilder,
    Suppressed,
    TestRecord,
    Topology,
    TopologyTestDriver,
    key_value_store,
    run_batch,
    run_stream,
    tumbling,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.slow]

SEED = 7
BATCHES = 2
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
TYPES = {"key": "string", "value": "long"}
TABLES = ("joined", "finals", "distinct", "moved", "objects")
COLUMNS = pa.schema(
    [
        ("key", pa.string()),
        ("value", pa.int64()),
        ("__timestamp", pa.timestamp("us", tz="UTC")),
        ("__offset", pa.int64()),
        ("__sequence", pa.int64()),
    ]
)


class Distinct:
    """A processor that forwards a key's value when it changes."""

    def init(self, context: Any) -> None:
        self.context, self.last = context, context.store("last")

    def process(self, record: Any) -> None:
        if record.value is not None and self.last.get(record.key) != record.value:
            self.last.put(record.key, record.value)
            self.context.forward(record)


def topology() -> Topology:
    builder = StreamsBuilder()
    x, y = builder.stream("x", **TYPES), builder.stream("y", **TYPES)
    table = y.to_table(store="table")
    joined = x.left_join(table, lambda left, right: left * 100 + (right or 0))
    joined.to_delta("joined")
    counts = x.group_by_key().windowed_by(tumbling(20, grace=10)).count()
    counts.suppress(Suppressed.until_window_closes()).to_stream().to_delta("finals")
    x.process(Distinct, stores=[key_value_store("last", **TYPES)]).to_delta("distinct")
    tens = joined.map(lambda key, value: (str(value // 10), value)).group_by_key()
    tens.reduce(lambda one, value: one + value).group_by(lambda key, value: (str(value % 3), value)).count().to_delta(
        "moved"
    )
    # An object as a key, and an aggregate that shows the type of the one before it.
    by_object = joined.group_by(lambda value: {"digit": value % 10, "of": ["x"]}, key="json")
    by_object.aggregate(
        lambda: (), lambda key, value, found: (value, key["digit"], type(found).__name__), value="json"
    ).to_delta("objects")
    return builder.build()


def script() -> list[list[TestRecord]]:
    """Draw batches of records of both topics, out of order in time."""
    chance = random.Random(SEED)
    return [
        [
            TestRecord(
                chance.choice("xy"),
                chance.choice("abcdef"),
                chance.choice([None, *range(10)]),
                max(0, number * 60 + chance.randint(-15, 60)),
            )
            for _ in range(120)
        ]
        for number in range(BATCHES)
    ]


def write(batches: list[list[TestRecord]], directory: Path) -> None:
    """Write a file for each topic and batch. A stream reads them one by one."""
    places = {"x": 0, "y": 0}
    sequence = 0
    for number, batch in enumerate(batches):
        rows: dict[str, list[dict[str, Any]]] = {"x": [], "y": []}
        for record in batch:
            time = EPOCH + timedelta(milliseconds=record.timestamp_ms)
            row = {"key": record.key, "value": record.value, "__timestamp": time, "__sequence": sequence}
            rows[record.topic].append(row | {"__offset": places[record.topic]})
            places[record.topic] += 1
            sequence += 1
        for topic, found in rows.items():
            path = directory / topic / f"{number}.parquet"
            path.parent.mkdir(exist_ok=True)
            pq.write_table(pa.Table.from_pylist(found, COLUMNS), path)
            os.utime(path, (1000 + number, 1000 + number))


def test_stream_and_batch_give_the_drivers_results(spark: SparkSession, tmp_path: Path) -> None:
    batches = script()
    source = tmp_path / "in"
    source.mkdir()
    write(batches, source)
    frames = {topic: spark.read.parquet(str(source / topic)) for topic in "xy"}
    streams = {
        topic: spark.readStream.schema(frame.schema).option("maxFilesPerTrigger", 1).parquet(str(source / topic))
        for topic, frame in frames.items()
    }
    query = run_stream(
        topology(),
        spark,
        checkpoint=str(tmp_path / "checkpoint"),
        tables={name: str(tmp_path / "stream" / name) for name in TABLES},
        inputs=streams,
        available_now=True,
    )
    query.awaitTermination()
    assert query.exception() is None
    tables = {name: str(tmp_path / "batch" / name) for name in TABLES}
    run_batch(topology(), spark, tables=tables, inputs=frames)
    driver = TopologyTestDriver(topology())
    for batch in batches:
        driver.pipe_records(batch)
    for name in TABLES:
        expected = sorted(driver.table(name).to_arrow().to_pylist(), key=repr)
        assert expected
        for kind in ("stream", "batch"):
            path = str(tmp_path / kind / name)
            found = sorted(spark.read.format("delta").load(path).toArrow().to_pylist(), key=repr)
            assert found == expected, f"{kind} {name}, seed {SEED}"
