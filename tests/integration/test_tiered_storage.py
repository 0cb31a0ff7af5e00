"""Tests of tiered topics on a real broker.

The topics are written, read and expired. The stores are S3 (moto's server) and a directory.
"""

from __future__ import annotations

import os
import urllib.request
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from moto.server import ThreadedMotoServer

from millrace.clients import Admin, Consumer, Producer, TopicPartition
from millrace.errors import (
    EnvironmentProblemError,
    InvalidConfigError,
    OffsetOutOfRangeError,
    RemoteStorageError,
    StorageError,
)
from millrace.segments.remote import read_remote_extent
from millrace_broker.log.tiered.store import ArrowStore
from millrace_broker.testing import EmbeddedBroker
from pyspark_millrace import DefaultSource

from ..ports import free_port
from .waiting import Stall, eventually

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

BUCKET = "bucket"
QUICK = {
    "remote.log.storage.system.enable": "true",
    "remote.log.manager.task.interval.ms": "50",
    "remote.log.manager.task.retry.backoff.max.ms": "100",
    "log.retention.check.interval.ms": "50",
    "log.initial.task.delay.ms": "0",
    "log.segment.delete.delay.ms": "0",
}
TIERED = {
    "remote.storage.enable": "true",
    "segment.bytes": "4000",
    "index.interval.bytes": "500",
    "local.retention.bytes": "1",
    "retention.ms": "-1",
    "flush.messages": "1",
}


class S3:
    """A server of the S3 protocol with one bucket. It can stop and restart with its objects."""

    def __init__(self) -> None:
        self.port = free_port()
        self.start()
        urllib.request.urlopen(urllib.request.Request(f"http://127.0.0.1:{self.port}/{BUCKET}", method="PUT")).close()

    def start(self) -> None:
        self.server = ThreadedMotoServer(ip_address="127.0.0.1", port=self.port, verbose=False)
        self.server.start()

    def stop(self) -> None:
        self.server.stop()

    def uri(self, prefix: str) -> str:
        options = f"scheme=http&endpoint_override=127.0.0.1:{self.port}&region=us-east-1"
        return f"s3://{BUCKET}/{prefix}?{options}"


@pytest.fixture(scope="module")
def s3() -> Iterator[S3]:
    names = {"AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "secret", "AWS_EC2_METADATA_DISABLED": "true"}
    with pytest.MonkeyPatch.context() as patch:
        for name, value in names.items():
            patch.setenv(name, value)
        patch.setenv("NO_PROXY", ",".join(filter(None, [os.environ.get("NO_PROXY"), "127.0.0.1"])))
        server = S3()
        yield server
        server.stop()


@pytest.fixture(params=["s3", "directory"])
def uri(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Return the location of the copies."""
    if request.param == "directory":
        return (tmp_path / "remote").as_uri()
    return request.getfixturevalue("s3").uri(f"{uuid.uuid4().hex}/logs")


@contextmanager
def tiered_broker(directory: Path, uri: str, **options: str) -> Iterator[EmbeddedBroker]:
    with EmbeddedBroker(directory, options=QUICK | {"remote.log.storage.uri": uri} | options) as running:
        yield running


def values_of(count: int, first: int = 0) -> list[bytes]:
    return [b"%06d:" % number + b"x" * (number % 50) for number in range(first, first + count)]


def produce(broker: EmbeddedBroker, topic: str, values: list[bytes]) -> None:
    with Producer({"bootstrap.servers": broker.bootstrap_servers, "batch.size": 1000, "linger.ms": 0}) as producer:
        for start in range(0, len(values), 20):
            chunk = values[start : start + 20]
            table = pa.table({"value": pa.array(chunk, pa.binary())})
            producer.send_table(topic, table, partition=0, timestamps=1_700_000_000_000 + int(chunk[0][:6]))
            producer.flush()


def consume(broker: EmbeddedBroker, topic: str, count: int, start: int = 0) -> list[bytes]:
    found: list[bytes] = []
    partition = TopicPartition(topic, 0)
    with Consumer({"bootstrap.servers": broker.bootstrap_servers, "max.partition.fetch.bytes": 3000}) as consumer:
        consumer.assign([partition])
        consumer.seek(partition, start)
        stall = Stall("records")
        while len(found) < count:
            stall.check(len(found))
            found += [record.value for record in consumer.poll(1.0)]
    return found


def log_of(broker: EmbeddedBroker, topic: str):
    return broker.server.broker.logs.get(topic, 0)


def wait_until_tiered(broker: EmbeddedBroker, topic: str) -> None:
    """Wait until all segments but the last are only in the store."""
    log = log_of(broker, topic)
    eventually(lambda: len(log.segments) == 1 and log.first_base_offset > 0, "one segment is on the disk")


@pytest.fixture
def filled(uri: str, tmp_path: Path, topic: str) -> Iterator[tuple[EmbeddedBroker, Admin, list[bytes]]]:
    """Start a broker with a tiered topic whose segments, except the last, are only in the store."""
    with tiered_broker(tmp_path / "broker", uri) as broker, Admin(broker.bootstrap_servers) as admin:
        admin.create_topic(topic, partitions=1, configs=TIERED)
        values = values_of(1000)
        produce(broker, topic, values)
        wait_until_tiered(broker, topic)
        yield broker, admin, values


def test_a_store_keeps_objects(uri: str) -> None:
    store = ArrowStore(uri)
    assert store.list("orders-0") == []
    assert store.open("orders-0", "none") is None
    large = [bytes([number]) * 2**20 for number in range(7)]
    store.write("orders-0", "b.log", large)
    store.publish("orders-0", "a.manifest", b"{}")
    assert [(item.name, item.size_bytes) for item in store.list("orders-0")] == [
        ("a.manifest", 2),
        ("b.log", 7 * 2**20),
    ]
    file = store.open("orders-0", "b.log")
    assert file is not None
    assert file.read(2**20 - 1, 3) == b"\0\1\1"
    assert file.read(7 * 2**20 - 1, 10) == b"\6"
    store.remove("orders-0", "a.manifest")
    store.remove("orders-0", "a.manifest")
    assert [item.name for item in store.list("orders-0")] == ["b.log"]
    store.remove_folder("orders-0")
    store.remove_folder("orders-0")
    assert store.list("orders-0") == []


def test_consumers_read_on_through_the_store(filled: tuple[EmbeddedBroker, Admin, list[bytes]], topic: str) -> None:
    broker, admin, values = filled
    assert consume(broker, topic, 1000) == values
    assert consume(broker, topic, 400, start=600) == values[600:]
    partition = TopicPartition(topic, 0)
    assert admin.list_offsets({partition: "earliest"})[partition].offset == 0
    assert admin.list_offsets({partition: 1_700_000_000_300})[partition].offset == 300
    local = log_of(broker, topic).first_base_offset
    assert admin.list_offsets({partition: "earliest-local"})[partition].offset == local
    assert admin.list_offsets({partition: "latest-tiered"})[partition].offset == local - 1
    assert admin.list_offsets({partition: "earliest-pending-upload"})[partition].offset == local
    assert b"".join(admin.read_range(topic, 0, 10, 990))


def test_a_tiered_topic_continues_after_a_restart(uri: str, tmp_path: Path, topic: str) -> None:
    values = values_of(600)
    with tiered_broker(tmp_path / "broker", uri) as broker, Admin(broker.bootstrap_servers) as admin:
        admin.create_topic(topic, partitions=1, configs=TIERED)
        produce(broker, topic, values)
        wait_until_tiered(broker, topic)
    with tiered_broker(tmp_path / "broker", uri) as broker:
        assert consume(broker, topic, 600) == values
        more = values_of(300, first=600)
        produce(broker, topic, more)
        assert consume(broker, topic, 900) == values + more


def read_directly(broker: EmbeddedBroker, topic: str, **options: str) -> list[bytes]:
    source = DefaultSource({"kafka.bootstrap.servers": broker.bootstrap_servers, "subscribe": topic, **options})
    reader = source.reader(source.schema())
    tables = [batch for split in reader.partitions() for batch in reader.read(split)]
    rows = pa.Table.from_batches(tables).sort_by("offset")
    return rows.column("value").to_pylist()


@pytest.mark.parametrize("split_bytes", ["1500", "1000000"])
def test_spark_reads_the_store_itself(
    filled: tuple[EmbeddedBroker, Admin, list[bytes]], topic: str, split_bytes: str
) -> None:
    broker, admin, values = filled
    located = admin.locate_range(topic, 0, 0, 1000)
    assert [bool(extent.uri) for extent in located.extents][:-1] == [True] * (len(located.extents) - 1)
    assert located.extents[-1].path
    assert not located.extents[-1].uri
    for way in ("always", "auto", "never"):
        assert read_directly(broker, topic, directReads=way, splitBytes=split_bytes) == values


@pytest.mark.spark
def test_a_spark_session_reads_the_store_in_its_tasks(
    filled: tuple[EmbeddedBroker, Admin, list[bytes]], topic: str, uri: str, spark: SparkSession
) -> None:
    broker, _, values = filled
    # The workers of an existing session do not have this test's credentials, so they ask the broker.
    way = "always" if uri.startswith("file:") else "auto"
    reader = spark.read.format("millrace").option("kafka.bootstrap.servers", broker.bootstrap_servers)
    rows = reader.options(subscribe=topic, splitBytes=4000, directReads=way).load().select("offset", "value").collect()
    assert [bytes(value) for _, value in sorted(map(tuple, rows))] == values


def test_spark_reads_from_the_broker_if_it_cannot_reach_the_store(
    filled: tuple[EmbeddedBroker, Admin, list[bytes]], topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker, _, values = filled

    def fails_in_the_middle(uri: str, start: int, end: int) -> Iterator[pa.Buffer]:
        for number, chunk in enumerate(read_remote_extent(uri, start, end, chunk_bytes=1200)):
            if number == 1:
                raise RemoteStorageError("no way to the store from here")
            yield chunk

    monkeypatch.setattr("millrace.segments.remote.read_remote_extent", fails_in_the_middle)
    assert read_directly(broker, topic) == values
    with pytest.raises(StorageError, match="no way to the store from here"):
        read_directly(broker, topic, directReads="always")


def test_reads_and_writes_of_local_records_continue_without_the_store(s3: S3, tmp_path: Path, topic: str) -> None:
    with (
        tiered_broker(tmp_path / "broker", s3.uri(uuid.uuid4().hex)) as broker,
        Admin(broker.bootstrap_servers) as admin,
    ):
        admin.create_topic(topic, partitions=1, configs=TIERED)
        values = values_of(400)
        produce(broker, topic, values)
        wait_until_tiered(broker, topic)
        s3.stop()
        try:
            segments = len(log_of(broker, topic).segments)
            produce(broker, topic, values_of(200, first=400))
            with pytest.raises(RemoteStorageError, match="check the remote store") as failed:
                log_of(broker, topic).read(0, 1000)
            assert failed.value.retriable
            local = log_of(broker, topic).first_base_offset
            assert consume(broker, topic, 600 - local, start=local) == values_of(600)[local:]
            assert len(log_of(broker, topic).segments) > segments, "segments without a copy stay"
        finally:
            s3.start()
        wait_until_tiered(broker, topic)
        assert consume(broker, topic, 600) == values_of(600)


def test_deletions_reach_the_store(uri: str, tmp_path: Path, topic: str) -> None:
    store = ArrowStore(uri)
    with tiered_broker(tmp_path / "broker", uri) as broker, Admin(broker.bootstrap_servers) as admin:
        admin.create_topic(topic, partitions=1, configs=TIERED)
        produce(broker, topic, values_of(400))
        wait_until_tiered(broker, topic)
        folder = log_of(broker, topic).remote.folder
        count = len(store.list(folder))
        broker.server.broker.logs.delete_records(topic, 0, 200)
        eventually(lambda: len(store.list(folder)) < count, "copies before the start are gone")
        with pytest.raises(OffsetOutOfRangeError):
            list(admin.read_range(topic, 0, 199, 300))
        assert consume(broker, topic, 200, start=200) == values_of(400)[200:]
        admin.delete_topic(topic)
        eventually(lambda: store.list(folder) == [], "nothing is left of the topic")


def test_invalid_settings_of_tiered_topics_are_refused(tmp_path: Path, topic: str) -> None:
    uri = (tmp_path / "remote").as_uri()
    with tiered_broker(tmp_path / "broker", uri) as broker, Admin(broker.bootstrap_servers) as admin:
        with pytest.raises(InvalidConfigError, match="not supported for compacted topics"):
            admin.create_topic(topic, configs={"remote.storage.enable": "true", "cleanup.policy": "compact"})
        with pytest.raises(InvalidConfigError, match=r"local\.retention\.ms=60000 is above retention\.ms=1000"):
            admin.create_topic(topic, configs=TIERED | {"retention.ms": "1000", "local.retention.ms": "60000"})
        admin.create_topic(topic, configs=TIERED)
        with pytest.raises(InvalidConfigError, match=r"remote\.log\.delete\.on\.disable=true"):
            admin.alter_configs(topic, {"remote.storage.enable": "false"})
        with pytest.raises(InvalidConfigError, match="not supported for compacted topics"):
            admin.alter_configs(topic, {"cleanup.policy": "compact"})
    with pytest.raises(EnvironmentProblemError, match=f"topics {topic} have remote.storage.enable=true"):
        EmbeddedBroker(tmp_path / "broker").start()
    with (
        EmbeddedBroker(tmp_path / "other") as broker,
        Admin(broker.bootstrap_servers) as admin,
        pytest.raises(InvalidConfigError, match="disabled in the broker"),
    ):
        admin.create_topic(topic, configs=TIERED)


def test_disabling_with_deletion_keeps_what_is_on_the_disk(tmp_path: Path, topic: str) -> None:
    uri = (tmp_path / "remote").as_uri()
    with tiered_broker(tmp_path / "broker", uri) as broker, Admin(broker.bootstrap_servers) as admin:
        admin.create_topic(topic, configs=TIERED)
        produce(broker, topic, values_of(400))
        wait_until_tiered(broker, topic)
        local = log_of(broker, topic).first_base_offset
        admin.alter_configs(topic, {"remote.storage.enable": "false", "remote.log.delete.on.disable": "true"})
        assert log_of(broker, topic).log_start_offset == local
        assert consume(broker, topic, 400 - local, start=local) == values_of(400)[local:]
        eventually(lambda: list((tmp_path / "remote").iterdir()) == [], "the store is empty")
        admin.alter_configs(topic, {"remote.storage.enable": "true"})
        produce(broker, topic, values_of(400, first=400))
        wait_until_tiered(broker, topic)
        assert consume(broker, topic, 800 - local, start=local) == values_of(800)[local:]
