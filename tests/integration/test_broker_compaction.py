"""Tests of compacted topics on a real broker.

The tests check the accepted records and the cleaned log.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from millrace.clients import Admin, Consumer, Producer, TopicPartition
from millrace.errors import InvalidConfigError, InvalidRecordError
from millrace_broker.testing import EmbeddedBroker

from .waiting import STALL_S, eventually

COMPACT = {"cleanup.policy": "compact", "segment.bytes": "20000", "min.cleanable.dirty.ratio": "0.01"}


@pytest.fixture(scope="module")
def compacting_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedBroker]:
    folder = tmp_path_factory.mktemp("compacting")
    with EmbeddedBroker(folder, options={"log.cleaner.backoff.ms": 50, "log.segment.delete.delay.ms": 0}) as running:
        yield running


@pytest.fixture
def admin(compacting_broker: EmbeddedBroker) -> Iterator[Admin]:
    with Admin(compacting_broker.bootstrap_servers) as admin:
        yield admin


@pytest.fixture
def producer(compacting_broker: EmbeddedBroker) -> Iterator[Producer]:
    with Producer({"bootstrap.servers": compacting_broker.bootstrap_servers}) as producer:
        yield producer


def read_all(broker: EmbeddedBroker, topic: str) -> list[dict[str, Any]]:
    with Consumer({"bootstrap.servers": broker.bootstrap_servers, "auto.offset.reset": "earliest"}) as consumer:
        consumer.assign([TopicPartition(topic, 0)])
        rows: list[dict[str, Any]] = []
        while (table := consumer.poll_table(300)) is not None and table.num_rows:
            rows += table.to_pylist()
        return rows


def test_the_last_value_of_each_key_is_left(
    compacting_broker: EmbeddedBroker, admin: Admin, producer: Producer
) -> None:
    admin.create_topic("opaque", partitions=1, configs=COMPACT)
    for n in range(1200):
        producer.send("opaque", b"%d" % n + b"." * 90, key=b"k%d" % (n % 10))
        if n % 50 == 0:
            producer.flush()
    producer.flush()
    eventually(lambda: len(read_all(compacting_broker, "opaque")) < 600)
    rows = read_all(compacting_broker, "opaque")
    last = {row["key"]: int(row["value"].split(b".")[0]) for row in rows}
    assert last == {b"k%d" % (n % 10): n for n in range(1190, 1200)}
    numbers = [int(row["value"].split(b".")[0]) for row in rows]
    assert numbers == sorted(numbers)


def test_a_typed_topic_is_compacted_by_its_key_columns(
    compacting_broker: EmbeddedBroker, admin: Admin, producer: Producer
) -> None:
    admin.create_topic("typed", partitions=1, schema="id BIGINT, name STRING", key_columns=["id"], configs=COMPACT)
    for n in range(60):
        ids = pa.array([(n + m) % 7 for m in range(40)], pa.int64())
        names = pa.array([f"{n}-{m}" + "x" * 20 for m in range(40)])
        producer.send_table("typed", pa.table({"id": ids, "name": names}))
        producer.flush()
    eventually(lambda: len(read_all(compacting_broker, "typed")) < 1200)
    rows = read_all(compacting_broker, "typed")
    last = {row["id"]: row["name"].rstrip("x") for row in rows}
    assert last == {(59 + m) % 7: f"59-{m}" for m in range(33, 40)}


def test_records_without_key_are_refused_and_the_row_is_named(admin: Admin, producer: Producer) -> None:
    admin.create_topic("keyed", partitions=1, configs=COMPACT)
    with pytest.raises(InvalidRecordError, match="row 0 of a batch for keyed has no key"):
        producer.send("keyed", b"value").result(STALL_S)
    table = pa.table({"key": pa.array([b"a", None], pa.binary()), "value": pa.array([b"1", b"2"], pa.binary())})
    future = producer.send_table("keyed", table, partition=0)
    with pytest.raises(InvalidRecordError, match="row 1 of a batch for keyed has no key"):
        future.result(STALL_S)


def test_a_typed_topic_without_key_columns_cannot_be_compacted(admin: Admin) -> None:
    with pytest.raises(InvalidConfigError, match="no key columns"):
        admin.create_topic("keyless", partitions=1, schema="id BIGINT", configs=COMPACT)
    admin.create_topic("keyless", partitions=1, schema="id BIGINT")
    with pytest.raises(InvalidConfigError, match="no key columns"):
        admin.alter_configs("keyless", {"cleanup.policy": "compact"})


def test_a_topic_can_become_compacted(
    compacting_broker: EmbeddedBroker, admin: Admin, producer: Producer, tmp_path: Path
) -> None:
    admin.create_topic("later", partitions=1, configs={"segment.bytes": "10000"})
    for n in range(400):
        producer.send("later", b"." * 90, key=b"k%d" % (n % 3))
        if n % 40 == 0:
            producer.flush()
    producer.flush()
    assert len(read_all(compacting_broker, "later")) == 400
    admin.alter_configs("later", {"cleanup.policy": "compact,delete", "min.cleanable.dirty.ratio": "0"})
    eventually(lambda: len(read_all(compacting_broker, "later")) < 250)
