"""Tests of Nexmark's queries as DataFrames over topics, against DuckDB."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import duckdb
import pyarrow as pa
import pytest
from benchmarks.nexmark import catalogue, frames, reference, topics
from benchmarks.nexmark.generator import Generator, Settings

from millrace.clients import Producer

pytestmark = pytest.mark.spark

COUNT = 100_000
# The events span five hours, from daytime into the next day. Times are multiples of 200 ms. So some bids of the few
# active people are exactly the session gap apart, and equal bids and equally full windows are common.
SETTINGS = Settings(
    base_time_ms=int(datetime(2015, 7, 14, 18, 30, tzinfo=UTC).timestamp() * 1000),
    events_per_second=5,
    active_people=50,
    out_of_order_group_size=100,
)


@pytest.fixture(scope="module")
def source() -> Generator:
    return Generator(SETTINGS)


@pytest.fixture(scope="module")
def expected(source: Generator) -> Iterator[duckdb.DuckDBPyConnection]:
    connection = reference.connect(source.events(0, COUNT))
    yield connection
    connection.close()


@pytest.fixture(scope="module")
def events(spark, module_broker, admin, source: Generator) -> frames.Events:
    names = topics.Topics.with_prefix("nexmark")
    topics.create(admin, names, partitions=3)
    with Producer({"bootstrap.servers": module_broker.bootstrap_servers}) as producer:
        topics.fill(producer, names, source, COUNT, chunk_events=30_000)
    return frames.Events(spark, module_broker.bootstrap_servers, names)


def in_order(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """Return rows sorted by all columns, with the columns and types of the reference."""
    table = reference.without_zone(table).select(schema.names).cast(schema)
    return table.sort_by([(name, "ascending") for name in schema.names]).combine_chunks()


def assert_same_rows(given: pa.Table, wanted: pa.Table) -> None:
    assert sorted(given.schema.names) == sorted(wanted.schema.names)
    assert given.num_rows == wanted.num_rows > 0
    schema = pa.schema([field.with_nullable(True) for field in wanted.schema])
    given, wanted = in_order(given, schema), in_order(wanted, schema)
    assert [name for name in schema.names if not given[name].equals(wanted[name])] == []


def test_every_query_of_the_catalogue_has_a_data_frame() -> None:
    assert list(frames.QUERIES) == list(catalogue.QUERIES)


@pytest.mark.parametrize("name", catalogue.QUERIES)
def test_spark_gives_the_rows_that_duckdb_gives(
    name: str, events: frames.Events, expected: duckdb.DuckDBPyConnection
) -> None:
    assert_same_rows(frames.query(name, events).toArrow(), reference.answer(expected, name))


@pytest.mark.parametrize("name", frames.STATELESS)
def test_queries_without_state_give_the_same_as_streams(
    name: str, events: frames.Events, expected: duckdb.DuckDBPyConnection, tmp_path: Path
) -> None:
    stream = (
        frames.query(name, replace(events, is_stream=True)).writeStream.format("parquet").trigger(availableNow=True)
    )
    path = str(tmp_path / "rows")
    stream.option("checkpointLocation", str(tmp_path / "checkpoint")).start(path).awaitTermination()
    assert_same_rows(events.spark.read.parquet(path).toArrow(), reference.answer(expected, name))


def test_events_of_all_kinds_can_share_a_topic(spark, module_broker, admin, source: Generator) -> None:
    table = source.stream(0, 1000)
    admin.create_topic("nexmark", partitions=1, configs={"retention.ms": "-1"}, schema=table.schema)
    with Producer({"bootstrap.servers": module_broker.bootstrap_servers}) as producer:
        producer.send_table("nexmark", table)
        producer.flush()
    reader = spark.read.format("millrace").option("kafka.bootstrap.servers", module_broker.bootstrap_servers)
    given = reader.option("subscribe", "nexmark").load()
    assert [row["event_type"] for row in given.collect()] == table["event_type"].to_pylist()
    bids = given.where("event_type = 2").select("bid.*").toArrow()
    assert_same_rows(bids, reference.without_zone(source.events(0, 1000).bid))
