"""Tests of records and tables sent to a real broker."""

import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

from millrace.clients import Admin, Consumer, Producer, TopicPartition
from millrace.errors import (
    BrokerUnavailableError,
    ClientClosedError,
    InvalidConfigError,
    MessageTooLargeError,
    SchemaMismatchError,
    UnknownTopicOrPartitionError,
)
from millrace_broker.testing import EmbeddedBroker

from ..murmur2 import partition_for_key
from .waiting import STALL_S


@pytest.fixture
def producer(module_broker: EmbeddedBroker) -> Iterator[Producer]:
    with Producer(module_broker.bootstrap_servers) as client:
        yield client


def _read(broker: EmbeddedBroker, topic: str, count: int) -> pa.Table:
    tables: list[pa.Table] = []
    with Consumer({"bootstrap.servers": broker.bootstrap_servers, "auto.offset.reset": "earliest"}) as consumer:
        consumer.assign(consumer.partitions_for(topic))
        while sum(table.num_rows for table in tables) < count:
            table = consumer.poll_table(10_000, metadata=["__partition", "__offset", "__timestamp", "__headers"])
            assert table.num_rows, "fewer records than expected"
            tables.append(table)
    return pa.concat_tables(tables)


def test_records_are_at_the_offsets_of_their_futures(
    admin: Admin, producer: Producer, module_broker: EmbeddedBroker
) -> None:
    admin.create_topic("records", partitions=3)
    futures = [
        producer.send("records", f"value {n}", key=f"key {n % 10}", timestamp_ms=n, headers={"n": str(n).encode()})
        for n in range(500)
    ]
    places = [future.result(STALL_S) for future in futures]
    rows = {(row["__partition"], row["__offset"]): row for row in _read(module_broker, "records", 500).to_pylist()}
    for n, place in enumerate(places):
        assert place.partition == partition_for_key(f"key {n % 10}".encode(), 3)
        row = rows[place.partition, place.offset]
        assert (row["key"], row["value"]) == (f"key {n % 10}".encode(), f"value {n}".encode())
        assert row["__headers"] == [{"key": "n", "value": str(n).encode()}]
        assert row["__timestamp"].timestamp() * 1000 == n
    for partition in range(3):
        offsets = [place.offset for place in places if place.partition == partition]
        assert offsets == sorted(offsets)


def test_callbacks_are_called_and_tombstones_are_sent(
    admin: Admin, producer: Producer, module_broker: EmbeddedBroker
) -> None:
    admin.create_topic("tombs", partitions=2)
    called = threading.Event()
    future = producer.send("tombs", None, key=b"k", partition=1)
    future.add_done_callback(lambda done: called.set())
    future.add_done_callback(lambda done: 1 / 0)  # logged, and the sender continues
    assert called.wait(STALL_S)
    assert future.result().partition == 1
    later = threading.Event()
    future.add_done_callback(lambda done: later.set())
    assert later.is_set()
    assert _read(module_broker, "tombs", 1).column("value").to_pylist() == [None]


@pytest.mark.parametrize("compression", ["none", "lz4", "zstd"])
def test_tables_of_any_library_are_sent_whole(admin: Admin, module_broker: EmbeddedBroker, compression: str) -> None:
    topic = f"tables-{compression}"
    admin.create_topic(topic, partitions=2, schema="id BIGINT NOT NULL, name STRING", key_columns=["id"])
    config = {"bootstrap.servers": module_broker.bootstrap_servers, "compression.type": compression}
    sources = [
        pa.table({"id": range(1000), "name": [f"n{n}" for n in range(1000)]}),
        pd.DataFrame({"id": range(1000, 1100), "name": "pandas"}),
        pl.DataFrame({"name": ["polars"] * 100, "id": range(1100, 1200)}),
        [{"id": 1200}],
    ]
    with Producer(config) as producer:
        for source in sources:
            producer.send_table(topic, source)
    table = _read(module_broker, topic, 1201)
    assert sorted(table.column("id").to_pylist()) == list(range(1201))
    for row in table.to_pylist():
        assert row["__partition"] == partition_for_key(row["id"].to_bytes(8, "big"), 2)


def test_large_tables_are_cut_into_batches(admin: Admin, module_broker: EmbeddedBroker) -> None:
    admin.create_topic("cut", partitions=4)
    values = np.random.default_rng(1).bytes(100 * 20_000)
    table = pa.table({"value": [values[at : at + 100] for at in range(0, len(values), 100)]})
    config = {"bootstrap.servers": module_broker.bootstrap_servers, "batch.size": 100_000, "buffer.memory": 500_000}
    with Producer(config) as producer:
        batches = producer.send_table("cut", table).result(STALL_S)
    assert sum(batch.num_records for batch in batches) == 20_000
    assert 15 <= len(batches) <= 30
    assert {batch.partition for batch in batches} == {0, 1, 2, 3}
    found = _read(module_broker, "cut", 20_000).column("value").to_pylist()
    assert Counter(found) == Counter(table.column("value").to_pylist())


@pytest.mark.parametrize("has_keys", [False, True])
def test_stored_batches_of_a_table_fit_a_fetch_of_kafkas_consumers(tmp_path: Path, has_keys: bool) -> None:
    number = 100_000
    columns: dict[str, Any] = {"value": [b"x" * 100] * number, "timestamp": range(number)}
    if has_keys:
        columns["key"] = [str(each).encode() for each in range(number)]
    with EmbeddedBroker(tmp_path) as broker, Admin(broker.bootstrap_servers) as admin:
        admin.create_topic("t", partitions=4)
        with Producer(broker.bootstrap_servers) as producer:
            batches = producer.send_table("t", pa.table(columns)).result(STALL_S)
    lengths = [length for log in tmp_path.glob("t-*/*.log") for length in _batch_lengths(log.read_bytes())]
    assert len(lengths) == len(batches)
    assert max(lengths) <= 2**20
    assert sum(lengths) / len(lengths) > 2**19


def _batch_lengths(log: bytes) -> Iterator[int]:
    position = 0
    while position < len(log):
        length = 12 + int.from_bytes(log[position + 8 : position + 12])
        yield length
        position += length


def test_partition_and_timestamps_are_taken_from_argument_column_or_array(
    admin: Admin, producer: Producer, module_broker: EmbeddedBroker
) -> None:
    admin.create_topic("placed", partitions=3)
    value = [b"a", b"b", b"c"]
    producer.send_table("placed", {"value": value, "partition": [2, 1, 0], "timestamp": [7, 8, 9]}).result(STALL_S)
    producer.send_table(
        "placed", {"value": value, "p": [1, 1, 0], "t": [1, 2, 3]}, partition="p", timestamps="t"
    ).result(STALL_S)
    producer.send_table(
        "placed", {"value": value}, partition=np.array([0, 0, 2]), timestamps=pa.array([4, 5, 6])
    ).result(STALL_S)
    producer.send_table("placed", {"value": value}, partition=2, timestamps=10).result(STALL_S)
    rows = sorted(
        (int(row["__timestamp"].timestamp() * 1000), row["__partition"])
        for row in _read(module_broker, "placed", 12).to_pylist()
    )
    expected = [(1, 1), (2, 1), (3, 0), (4, 0), (5, 0), (6, 2), (7, 2), (8, 1), (9, 0), (10, 2), (10, 2), (10, 2)]
    assert rows == expected


def test_typed_records_are_checked_when_sent(admin: Admin, producer: Producer, module_broker: EmbeddedBroker) -> None:
    admin.create_topic("strict", partitions=1, schema="id INT NOT NULL, price DECIMAL(5,2), tags ARRAY<STRING>")
    good = producer.send("strict", {"id": 1, "tags": ["a"]})
    for value, message in [
        ({"id": None}, "column id is NOT NULL"),
        ({"id": 2**40}, "column id: 1099511627776 does not fit INT"),
        ({"id": "1"}, "column id: '1' is not a valid INT"),
        ({"id": True}, "column id: True is not a valid INT"),
        ({"id": 1, "x": 2}, "column x is not in the topic's schema"),
        (b"bytes", "a dict of its columns"),
    ]:
        with pytest.raises(SchemaMismatchError, match=message):
            producer.send("strict", value)
    with pytest.raises(SchemaMismatchError, match="leave key out"):
        producer.send("strict", {"id": 1}, key=b"k")
    # A value that only fails in the cast fails that record alone.
    bad = producer.send("strict", {"id": 2, "tags": [3]})
    last = producer.send("strict", {"id": 3})
    assert isinstance(bad.exception(STALL_S), SchemaMismatchError)
    assert (good.result(STALL_S).offset, last.result(STALL_S).offset) == (0, 1)
    assert _read(module_broker, "strict", 2).column("id").to_pylist() == [1, 3]


def test_tables_that_do_not_fit_are_refused_whole(admin: Admin, producer: Producer) -> None:
    admin.create_topic("fitting", partitions=1, schema="id INT NOT NULL, name STRING")
    with pytest.raises(SchemaMismatchError, match="column id, row 1: 1099511627776 does not fit INT"):
        producer.send_table("fitting", {"id": [1, 2**40]})
    with pytest.raises(SchemaMismatchError, match="column id, row 2: null"):
        producer.send_table("fitting", {"id": [1, 2, None]})
    with pytest.raises(SchemaMismatchError, match="column nam is not in the topic's schema"):
        producer.send_table("fitting", {"id": [1], "nam": ["x"]})
    producer.flush(STALL_S)
    assert admin.list_offsets({TopicPartition("fitting", 0): "latest"})[TopicPartition("fitting", 0)].offset == 0


def test_columns_added_meanwhile_are_noticed(admin: Admin, producer: Producer, module_broker: EmbeddedBroker) -> None:
    admin.create_topic("growing", partitions=1, schema="id INT")
    producer.send_table("growing", {"id": [1]}).result(STALL_S)
    admin.evolve_schema("growing", "id INT, name STRING")
    producer.send_table("growing", {"id": [2], "name": ["two"]}).result(STALL_S)
    table = _read(module_broker, "growing", 2)
    assert table.select(["id", "name"]).to_pylist() == [{"id": 1, "name": None}, {"id": 2, "name": "two"}]


def test_a_column_that_was_widened_is_noticed_when_the_metadata_is_old(
    admin: Admin, module_broker: EmbeddedBroker
) -> None:
    admin.create_topic("widened", partitions=1, schema="id INT", configs={"schema.compatibility": "BACKWARD"})
    with Producer({"bootstrap.servers": module_broker.bootstrap_servers, "metadata.max.age.ms": 1}) as producer:
        producer.send_table("widened", {"id": [1]}).result(STALL_S)
        admin.evolve_schema("widened", "id BIGINT")
        producer.send_table("widened", {"id": [2**40]}).result(STALL_S)
    assert _read(module_broker, "widened", 2).column("id").to_pylist() == [1, 2**40]


def test_too_large_records_fail_and_the_others_are_sent(admin: Admin, module_broker: EmbeddedBroker) -> None:
    admin.create_topic("large", partitions=1, configs={"max.message.bytes": 2000})
    config = {"bootstrap.servers": module_broker.bootstrap_servers, "max.request.size": 5000, "batch.size": 1000}
    with Producer(config) as producer:
        with pytest.raises(MessageTooLargeError, match=r"max.request.size is 5000"):
            producer.send_table("large", {"value": [b"x" * 10_000]})
        futures = [producer.send("large", b"x" * size) for size in (100, 10_000, 3000, 100)]
        producer.flush(STALL_S)
        assert [type(future.exception()) for future in futures] == [
            type(None),
            MessageTooLargeError,
            MessageTooLargeError,
            type(None),
        ]
        # A refused batch does not break the sequence numbers of the later ones.
        assert producer.send("large", b"after").result(STALL_S).offset == 2


def test_a_record_that_fits_the_schema_of_now_is_sent(
    admin: Admin, producer: Producer, module_broker: EmbeddedBroker
) -> None:
    def create(**options: Any) -> None:
        admin.create_topic("changing", partitions=1, configs={"schema.compatibility": "BACKWARD"}, **options)

    create(schema="id INT NOT NULL")
    producer.send("changing", {"id": 1}).result(STALL_S)
    admin.evolve_schema("changing", "id BIGINT NOT NULL")
    producer.send("changing", {"id": 2**40}).result(STALL_S)
    admin.evolve_schema("changing", "id BIGINT")
    producer.send("changing", {"id": None}).result(STALL_S)
    assert _read(module_broker, "changing", 3).column("id").to_pylist() == [1, 2**40, None]
    admin.delete_topic("changing")
    create()
    producer.send("changing", b"opaque").result(STALL_S)
    admin.delete_topic("changing")
    create(schema="name STRING")
    producer.send("changing", {"name": "typed"}).result(STALL_S)
    assert _read(module_broker, "changing", 1).column("name").to_pylist() == ["typed"]


def test_records_that_do_not_fit_ask_once_while_no_broker_answers(
    admin: Admin, module_broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    admin.create_topic("misfits", partitions=1, schema="id INT")
    config = {"bootstrap.servers": module_broker.bootstrap_servers, "retry.backoff.max.ms": 3_600_000}
    look_ups: list[str] = []

    def look_up(name: str) -> None:
        look_ups.append(name)
        raise BrokerUnavailableError("no broker answers")

    with Producer(config) as producer:
        producer.send("misfits", {"id": 1}).result(STALL_S)
        monkeypatch.setattr(producer, "_look_up_again", look_up)
        for value in ({"id": "text"}, {"nam": 1}, b"bytes", {"id": 2**40}):
            with pytest.raises(SchemaMismatchError):
                producer.send("misfits", value)
        assert look_ups == ["misfits"]


@pytest.mark.parametrize("call", ["send", "send_batch", "send_table"])
def test_batches_above_the_limit_of_the_topic_are_sent_as_smaller_ones(
    admin: Admin, module_broker: EmbeddedBroker, call: str
) -> None:
    name, config = f"halved-{call}", {"bootstrap.servers": module_broker.bootstrap_servers, "linger.ms": 100}
    admin.create_topic(name, partitions=1, configs={"max.message.bytes": 5000})
    values = [b"%03d" % number + b"x" * 200 for number in range(200)]
    with Producer(config) as producer:
        for _ in range(2):
            if call == "send":
                futures = [producer.send(name, value) for value in values]
                offsets = [future.result(STALL_S).offset for future in futures]
            elif call == "send_batch":
                offsets = [place.offset for place in producer.send_batch(name, values).result(STALL_S)]
            else:
                parts = producer.send_table(name, {"value": values}).result(STALL_S)
                offsets = [part.base_offset + row for part in parts for row in range(part.num_records)]
            assert [offset % 200 for offset in offsets] == list(range(200))
        producer.flush()
        assert producer.statistics().batches_waiting == producer.statistics().buffer_bytes == 0
    assert _read(module_broker, name, 400)["value"].to_pylist() == values * 2


def test_a_transaction_has_the_parts_of_a_batch_above_the_limit_of_the_topic(
    admin: Admin, module_broker: EmbeddedBroker
) -> None:
    admin.create_topic("halved-typed", partitions=1, schema="id INT, text STRING", configs={"max.message.bytes": 5000})
    rows = [{"id": number, "text": "x" * 200} for number in range(100)]
    config = {"bootstrap.servers": module_broker.bootstrap_servers, "transactional.id": "halved"}
    with Producer(config) as producer:
        producer.init_transactions()
        for _ in range(2):
            with producer.transaction():
                producer.send_table("halved-typed", rows)
                producer.send("halved-typed", rows[0])
    read = _read(module_broker, "halved-typed", 202).select(["id", "text"]).to_pylist()
    assert read == [*rows, rows[0]] * 2


def test_a_table_with_a_row_that_is_too_large_is_refused_whole(admin: Admin, module_broker: EmbeddedBroker) -> None:
    admin.create_topic("whole", partitions=1)
    config = {"bootstrap.servers": module_broker.bootstrap_servers, "max.request.size": 5000, "batch.size": 1000}
    with Producer(config) as producer:
        with pytest.raises(MessageTooLargeError, match=r"row 30 for topic whole .* max\.request\.size is 5000"):
            producer.send_table("whole", {"value": [b"x" * 100] * 30 + [b"x" * 10_000, b"x"]})
        assert producer.send("whole", b"after").result(STALL_S).offset == 0


def test_sends_to_unknown_topics_or_partitions_or_after_the_close_are_refused(
    admin: Admin, module_broker: EmbeddedBroker
) -> None:
    admin.create_topic("known", partitions=1)
    producer = Producer(module_broker.bootstrap_servers)
    with pytest.raises(UnknownTopicOrPartitionError, match="topic nowhere does not exist"):
        producer.send("nowhere", b"x")
    with pytest.raises(UnknownTopicOrPartitionError, match="no partition 5"):
        producer.send("known", b"x", partition=5)
    with pytest.raises(UnknownTopicOrPartitionError, match="no partition 5"):
        producer.send_table("known", {"value": [b"x"]}, partition=5)
    with pytest.raises(SchemaMismatchError, match="needs a column value"):
        producer.send_table("known", {"v": [b"x"]})
    producer.close()
    producer.close()
    for call in (lambda: producer.send("known", b"x"), lambda: producer.send_table("known", {"value": [b"x"]})):
        with pytest.raises(ClientClosedError):
            call()


def test_wrong_options_are_named() -> None:
    for options, message in [
        ({"acks": 7}, "acks"),
        ({"linger.mss": 7}, r"unknown option linger\.mss"),
        ({"compression.type": "gzip"}, r"compression\.type"),
        ({"acks": 1, "enable.idempotence": True}, "enable.idempotence=true needs acks=all"),
        ({"bootstrap.servers": "host:x"}, "'host:x' is not host:port"),
    ]:
        with pytest.raises(InvalidConfigError, match=message):
            Producer(options)


@pytest.mark.parametrize("acks", ["0", "1", "all"])
def test_a_record_is_stored_with_any_acks_and_has_no_offset_with_acks_0(
    admin: Admin, module_broker: EmbeddedBroker, acks: str
) -> None:
    topic = f"acks-{acks}"
    admin.create_topic(topic, partitions=1)
    config = {"bootstrap.servers": module_broker.bootstrap_servers, "acks": acks}
    with Producer(config) as producer:
        offset = producer.send(topic, b"x").result(STALL_S).offset
    assert offset == (-1 if acks == "0" else 0)
    assert _read(module_broker, topic, 1).num_rows == 1


def test_many_threads_share_a_producer(admin: Admin, producer: Producer, module_broker: EmbeddedBroker) -> None:
    admin.create_topic("shared", partitions=2)

    def work(thread: int) -> None:
        for number in range(200):
            producer.send("shared", f"{thread} {number}", key=str(thread))
        producer.send_table("shared", {"key": [str(thread)] * 10, "value": [f"{thread} {n}" for n in range(200, 210)]})

    threads = [threading.Thread(target=work, args=(thread,)) for thread in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    producer.flush(STALL_S)
    seen: dict[str, list[int]] = {}
    for value in _read(module_broker, "shared", 840).column("value").to_pylist():
        thread, number = value.decode().split()
        seen.setdefault(thread, []).append(int(number))
    assert seen == {str(thread): list(range(210)) for thread in range(4)}
