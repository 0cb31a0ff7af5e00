"""Tests of the README and the guides.

Each Python and shell block runs as it stands. A test creates what its guide takes for granted, such as topics with
records. ``documented.NOT_RUN`` names the blocks that no test can run.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from decimal import Decimal

import pytest
from deltalake import DeltaTable

from millrace.clients import Admin, Consumer, Producer, TopicPartition
from pyspark_millrace.decoding.dead_letters import OFFSET_HEADER, PARTITION_HEADER, REASON_HEADER, TOPIC_HEADER

from .documented import ROOT, Reader

FLIGHTS = "origin STRING NOT NULL, dep_delay DOUBLE, time_hour TIMESTAMP"
ORDER = '{"type": "record", "name": "Order", "fields": [{"name": "id", "type": "long"}]}'
DUMP = '[{"subject": "users-value", "version": 1, "id": 1, "schema": "\\"string\\""}]'

pytestmark = [pytest.mark.spark, pytest.mark.slow]


def create(reader: Reader, *topics: str) -> None:
    """Create opaque topics of one partition."""
    with Admin(reader.servers) as admin:
        for topic in topics:
            admin.create_topic(topic, partitions=1)


def fill_flights(reader: Reader) -> None:
    """Create the typed topic flights, with a flight of each of two airports in each of three hours."""
    noon = datetime(2013, 1, 1, 12, tzinfo=UTC)
    flights = [
        {"origin": origin, "dep_delay": 40.0 * hour, "time_hour": noon + timedelta(hours=hour)}
        for hour in range(3)
        for origin in ("JFK", "LGA")
    ]
    with Admin(reader.servers) as admin:
        admin.create_topic("flights", partitions=1, schema=FLIGHTS, key_columns=["origin"])
    with Producer(reader.servers) as producer:
        producer.send_table("flights", flights, timestamps="time_hour")


def values(reader: Reader, topic: str, count: int) -> list[object]:
    """Read the values of the first records of a topic."""
    with Consumer(reader.servers) as consumer:
        consumer.assign([TopicPartition(topic, 0)])
        consumer.seek_to_beginning()
        found: list[object] = []
        while len(found) < count:
            found += [record.value for record in consumer.poll(timeout_ms=1000)]
    return found


def rows(reader: Reader, table: str) -> list[dict[str, object]]:
    """Read a Delta table, sorted by its first two columns."""
    found = DeltaTable(str(reader.directory / table)).to_pyarrow_table()
    return found.sort_by([(name, "ascending") for name in found.column_names[:2]]).to_pylist()


def test_the_readme_produces_consumes_counts_once_ingests_and_describes(reader: Reader) -> None:
    printed = reader.follow("README.md")
    assert '"dep_delay": -3.0' in printed
    assert "lateness" in printed
    assert "Sub-topology: 0" in printed
    assert values(reader, "late", 1) == [b"12.5"]
    assert [row["origin"] for row in rows(reader, "tables/flights")] == ["JFK", "JFK", "LGA"]


def test_the_clients_guide_sends_reads_commits_and_shares(reader: Reader) -> None:
    create(reader, "events")
    printed = reader.follow("docs/clients.md")
    assert "__offset" in printed
    assert "'city': " in printed
    assert values(reader, "events", 1) == [b"v"]


def test_the_schemas_guide_imports_exports_and_decodes(reader: Reader) -> None:
    (reader.directory / "order.avsc").write_text(ORDER)
    (reader.directory / "registry.json").write_text(DUMP)
    printed = reader.follow("docs/schemas.md")
    assert "orders-value" in printed
    assert "is not a valid BIGINT" in printed
    assert "orders-value" in (reader.directory / "registry.json").read_text()


def test_the_guide_of_typed_topics_fills_columns_from_a_kafka_producer(reader: Reader) -> None:
    reader.follow("docs/kafka-typed-topics.md")
    assert values(reader, "orders", 1) == [{"id": 7, "name": "pen", "price": Decimal("1.25")}]


def test_the_migration_guide_reads_the_columns_that_it_names(reader: Reader) -> None:
    create(reader, "orders")
    reader.follow("docs/kafka-source-migration.md")
    assert reader.names["frame"].columns == ["key", "value", "timestamp"]
    assert reader.names["frame"].isStreaming


def test_the_spark_guide_reads_decodes_writes_and_ingests(reader: Reader) -> None:
    fill_flights(reader)
    create(reader, "orders", "orders-bad")
    (reader.directory / "order.avsc").write_text(ORDER)
    reader.run("millrace schemas import --id 7 --subject orders-value order.avsc")
    origin = {TOPIC_HEADER: b"orders", PARTITION_HEADER: b"0", OFFSET_HEADER: b"5", REASON_HEADER: b"no Avro"}
    with Producer(reader.servers) as producer:
        for _ in range(2):  # a task that runs again sends its dead letters again
            producer.send("orders-bad", b"?", headers=list(origin.items()))
    reader.follow("docs/spark.md")
    [letter] = rows(reader, "orders_bad")
    assert (letter["topic"], letter["partition"], letter["offset"]) == ("orders", 0, 5)
    assert sorted(values(reader, "orders_loud", 2)) == [b"SEVEN", b"TWELVE"]
    # A stream of Spark's sink and a direct ingest have written the flights, each with its own checkpoint.
    assert len(rows(reader, "flights")) == 2 * 6


def test_the_topology_guide_runs_tests_queries_and_changes_its_topology(reader: Reader) -> None:
    fill_flights(reader)
    create(reader, "flights-dead-letters")
    printed = reader.follow("docs/streams/guide.md")
    hours = rows(reader, "hourly_departures")
    assert [(row["origin"], row["departures"], row["mean_delay"]) for row in hours] == [
        (origin, 1, 40.0 * hour) for origin in ("JFK", "LGA") for hour in range(3)
    ]
    for again in ("hourly_departures_again", "from_job", "from_backfill"):
        assert rows(reader, again) == hours, again
    assert [row["n"] for row in rows(reader, "totals")] == [3, 3]
    assert "has new state" in printed
    assert (reader.directory / "hours.parquet").exists()
    # The guide shows the plan that explain prints.
    [plan] = re.findall(r"```text\n(Read topic.*?)```", (ROOT / "docs/streams/guide.md").read_text(), re.DOTALL)
    assert plan in printed
    reader.follow("docs/streams/latency.md")
    assert rows(reader, "live_departures") == hours
