"""Tests of the applications in jobs/ on Spark, from topics.

Each runs as a restarted stream and as a batch over the retained records. Both give the tables of the test driver, which
``unit/jobs`` compares with polars and DuckDB.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import polars as pl
import pyarrow as pa
import pytest

from millrace.clients import Admin, Producer
from millrace_streams import TopicShape, TopologyTestDriver, run_batch, run_stream
from millrace_streams.application import load_topology
from millrace_streams.demo.datasets import read_datasets, read_planes
from millrace_streams.demo.examples import EXAMPLES

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from millrace_broker.testing import EmbeddedBroker

pytestmark = [pytest.mark.spark, pytest.mark.slow]

ROOT = Path(__file__).resolve().parents[2]

Part = dict[str, pa.Table]
"""Rows by topic that exist when a stream starts."""


def halves(topic: str, rows: int) -> list[Part]:
    table = EXAMPLES[topic].table(rows, seed=7)
    edges = [0, rows // 3, rows]
    return [{topic: table.slice(start, end - start)} for start, end in pairwise(edges)]


def flights() -> list[Part]:
    """Return the flights. Planes and weather exist before the first flight."""
    flown, weather = (dataset.table for dataset in read_datasets(ROOT / "conf", 600))
    return [
        {"planes": read_planes(), "weather": weather, "flights": flown.slice(0, 200)},
        {"flights": flown.slice(200)},
    ]


@dataclass(frozen=True)
class Application:
    """A job's input in two parts.

    An application also has its key columns and its numbers of partitions. There are several partitions only if no
    result depends on stream time, because each partition has its own.
    """

    parts: Callable[[], list[Part]]
    keys: dict[str, tuple[str, ...]]
    partitions: int = 1


APPLICATIONS = {
    "word_count": Application(lambda: halves("lines", 600), {"lines": ()}, partitions=3),
    "malicious_access": Application(lambda: halves("requests", 9000), {"requests": ("address",)}),
    "hot_words": Application(lambda: halves("searches", 2000), {"searches": ()}),
    "stock_highs_lows": Application(lambda: halves("prices", 2000), {"prices": ("symbol",)}),
    "log_analysis": Application(lambda: halves("log_lines", 1500), {"log_lines": ()}),
    "flights_enriched": Application(flights, {"planes": ("tailnum",), "weather": ("origin",), "flights": ("origin",)}),
}


def send(servers: str, part: Part) -> None:
    with Producer({"bootstrap.servers": servers}) as producer:
        for topic, table in part.items():
            producer.send_table(topic, table)


def sorted_rows(frame: pl.DataFrame) -> list[str]:
    """Return sorted rows in UTC, because polars has two names for it."""
    times = [name for name, kind in frame.schema.items() if isinstance(kind, pl.Datetime)]
    return sorted(map(repr, frame.with_columns(pl.col(times).dt.convert_time_zone("UTC")).rows()))


@pytest.mark.parametrize("name", APPLICATIONS)
def test_a_restarted_stream_and_a_batch_give_the_drivers_results(
    name: str, spark: SparkSession, module_broker: EmbeddedBroker, tmp_path: Path
) -> None:
    application = APPLICATIONS[name]
    servers, topology, parts = (
        module_broker.bootstrap_servers,
        load_topology(str(ROOT / "jobs" / f"{name}.py")),
        application.parts(),
    )
    with Admin(servers) as admin:
        for topic, key in application.keys.items():
            schema = parts[0][topic].schema
            admin.create_topic(topic, partitions=application.partitions, schema=schema, key_columns=list(key))
    shapes = {
        topic: TopicShape(schema=parts[0][topic].schema, key_columns=key) for topic, key in application.keys.items()
    }
    driver = TopologyTestDriver(topology, topics=shapes)

    def places(kind: str) -> dict[str, Any]:
        return {table: str(tmp_path / kind / table) for table in topology.tables}

    for part in parts:
        send(servers, part)
        query = run_stream(
            topology,
            spark,
            checkpoint=str(tmp_path / "checkpoint"),
            tables=places("stream"),
            bootstrap_servers=servers,
            available_now=True,
        )
        query.awaitTermination()
        for topic, table in part.items():
            driver.pipe(topic, table)
    run_batch(topology, spark, tables=places("batch"), bootstrap_servers=servers)
    for table in topology.tables:
        expected = sorted_rows(driver.table(table))
        assert expected
        for kind, place in (("stream", places("stream")[table]), ("batch", places("batch")[table])):
            found = pl.DataFrame(spark.read.format("delta").load(place).toArrow())
            assert sorted_rows(found.select(driver.table(table).columns)) == expected, kind
