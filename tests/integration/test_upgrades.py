"""Tests of upgrades.

The data of earlier releases opens unchanged. The data are topics, groups, transactions, schemas, and checkpoints of
Spark queries. The code of the release wrote it (``tests/releases/write.py``); it is kept in ``tests/releases``.
"""

from __future__ import annotations

import tarfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from millrace.cli.main import main as run_millrace
from millrace.clients import Admin, Consumer, ConsumerRecord, Producer, TopicPartition
from millrace.schemas import parse_schema
from millrace_broker.testing import EmbeddedBroker
from millrace_streams import run_stream
from millrace_streams.application import load_topology
from millrace_streams.queries import open_state
from pyspark_millrace.delta import ingest

from ..releases import contents
from ..releases.keep import WRITTEN_AT, replace_directory

RELEASES = Path(__file__).resolve().parents[1] / "releases"
KEPT = sorted(path.parent.name for path in RELEASES.glob("*/data.tar.xz"))


@dataclass(frozen=True)
class Release:
    """A broker of today with the data of a release."""

    directory: Path
    servers: dict[str, str]

    def records(self, topic: str, partition: int = 0, **options: object) -> list[ConsumerRecord]:
        """Read a partition from its beginning to its end."""
        place = TopicPartition(topic, partition)
        with Admin(self.servers) as admin:
            end = admin.list_offsets({place: "latest"})[place].offset
        found: list[ConsumerRecord] = []
        with Consumer({**self.servers, **options}) as consumer:
            consumer.assign([place])
            consumer.seek_to_beginning()
            while consumer.position(place) < end:
                found += consumer.poll(timeout_ms=1000)
        return found


@pytest.fixture(scope="module", params=KEPT)
def release(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Release]:
    directory = tmp_path_factory.mktemp("release")
    with tarfile.open(RELEASES / request.param / "data.tar.xz") as archive:
        archive.extractall(directory, filter="data")
    replace_directory(directory, WRITTEN_AT, str(directory))
    assert run_millrace(["log", "verify", str(directory / "broker"), "--deep"]) == 0
    options = {"log.initial.task.delay.ms": str(2**31 - 1)}
    with EmbeddedBroker(directory / "broker", options=options) as broker:
        yield Release(directory, {"bootstrap.servers": broker.bootstrap_servers})


def test_every_release_is_kept_with_its_data() -> None:
    assert KEPT, "run make release"


def test_an_opaque_topic_has_its_keys_values_headers_and_times(release: Release) -> None:
    for partition in range(2):
        records = release.records("opaque", partition)
        sent = [(str(number), *pair) for number, pair in enumerate(contents.OPAQUE) if number % 2 == partition]
        assert [(record.key, record.value) for record in records] == [
            (key.encode(), value.encode()) for _, key, value in sent
        ]
        assert [record.headers for record in records] == [(("number", number.encode()),) for number, _, _ in sent]
        assert {record.timestamp_ms for record in records} == {contents.NOW_MS}


def test_a_typed_topic_has_the_rows_of_both_versions_of_its_schema(release: Release) -> None:
    with Admin(release.servers) as admin:
        assert admin.describe_topic("typed").read_schema == parse_schema(contents.TYPED_LATER)
    rows = [record.value for record in release.records("typed")]
    first = contents.orders(0, contents.ROWS_OF_VERSION)
    later = [{**row, "tip": 0.5} for row in contents.orders(contents.ROWS_OF_VERSION, contents.ROWS_OF_VERSION)]
    assert rows == first + later


def test_a_compacted_topic_has_the_last_value_of_each_key(release: Release) -> None:
    last = {record.key.decode(): record.value for record in release.records("compacted")}
    assert {key: value.decode() for key, value in last.items() if value is not None and key != "filler"} == (
        contents.COMPACTED
    )


def test_transactions_are_as_they_ended_and_their_producer_continues(release: Release) -> None:
    def values(isolation: str) -> list[str]:
        records = release.records("transactional", **{"isolation.level": isolation})
        return [record.value.decode() for record in records]

    assert values("read_committed")[: len(contents.COMMITTED)] == contents.COMMITTED
    assert not set(values("read_committed")) & set(contents.ABORTED)
    assert set(contents.ABORTED) < set(values("read_uncommitted"))
    with Producer({**release.servers, "transactional.id": "writer"}) as producer:
        producer.init_transactions()
        with producer.transaction():
            producer.send("transactional", "committed today")
    assert values("read_committed")[-1] == "committed today"


def test_a_group_continues_at_its_offsets(release: Release) -> None:
    with Admin(release.servers) as admin:
        offsets = {place.partition: found.offset for place, found in admin.list_group_offsets("readers").items()}
    assert offsets == contents.GROUP_OFFSETS


def test_options_and_payload_schemas_are_kept(release: Release) -> None:
    with Admin(release.servers) as admin:
        assert admin.describe_configs("opaque")["max.message.bytes"].value == "2000000"
        registry = admin.payload_registry()
    assert registry.latest("orders-value") == 7
    assert registry.schemas[7].text == contents.PAYLOAD_SCHEMA


@pytest.mark.spark
@pytest.mark.slow
def test_a_query_and_a_topology_continue_from_their_checkpoints(release: Release, spark: SparkSession) -> None:
    more = 30
    with Producer(release.servers) as producer:
        producer.send_table("orders", contents.orders(contents.ORDERS, more))
    source = {"kafka.bootstrap.servers": release.servers["bootstrap.servers"], "subscribe": "orders"}
    tables, checkpoints = release.directory / "tables", release.directory / "checkpoints"
    ingest(
        spark,
        {**source, "startingOffsets": "earliest", "includeMetadata": "true"},
        str(tables / "orders"),
        checkpoint=str(checkpoints / "orders"),
    ).awaitTermination()
    ids = DeltaTable(str(tables / "orders")).to_pyarrow_table()["id"].to_pylist()
    assert sorted(ids) == list(range(contents.ORDERS + more)), "each row is there once"
    run_stream(
        load_topology(str(RELEASES / "topology.py")),
        spark,
        tables=str(tables / "totals"),
        checkpoint=str(checkpoints / "totals"),
        bootstrap_servers=release.servers["bootstrap.servers"],
        available_now=True,
    ).awaitTermination()
    per_city = (contents.ORDERS + more) // 3
    totals = DeltaTable(str(tables / "totals")).to_pyarrow_table().to_pylist()
    assert {row["city"]: row["orders"] for row in totals} == dict.fromkeys(("Oslo", "Lima", "Hanoi"), per_city)
    with open_state(checkpoints / "totals", spark=spark) as state:
        assert len(state.store("totals").all()) == 3
