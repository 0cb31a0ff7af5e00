"""Tests of a consumer's fetches.

They come over the network or from local files. Prefetched records stay within a bound.
"""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
import pytest

from millrace.clients import Admin, Consumer, Producer, TopicPartition
from millrace_broker.testing import EmbeddedBroker

from .waiting import STALL_S, Stall, eventually


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedBroker]:
    with EmbeddedBroker(tmp_path_factory.mktemp("broker")) as running:
        yield running


def _consumer(broker: EmbeddedBroker, topic: str, **options: object) -> Consumer:
    named = {name.replace("_", "."): value for name, value in options.items()}
    consumer = Consumer({"bootstrap.servers": broker.bootstrap_servers, "auto.offset.reset": "earliest", **named})
    consumer.assign(consumer.partitions_for(topic))
    return consumer


def _read(consumer: Consumer, count: int, **options: object) -> pa.Table:
    tables: list[pa.Table] = []
    stall = Stall("records")
    while (rows := sum(table.num_rows for table in tables)) < count:
        stall.check(rows)
        tables.append(consumer.poll_table(200, metadata=True, **options))  # type: ignore[arg-type]
    table = pa.concat_tables(tables)
    return table.sort_by([("__partition", "ascending"), ("__offset", "ascending")])


@pytest.mark.parametrize("isolation", ["read_uncommitted", "read_committed"])
def test_files_and_the_network_give_the_same_rows(broker: EmbeddedBroker, isolation: str) -> None:
    topic = f"both-{isolation}"
    with Admin(broker.bootstrap_servers) as admin:
        admin.create_topic(topic, partitions=2, configs={"segment.bytes": "1000000"})
    config = {"bootstrap.servers": broker.bootstrap_servers, "transactional.id": topic, "batch.size": "50000"}
    values = [b"%09d" % number * 20 for number in range(1000)]
    kept = 0
    with Producer(config) as producer:
        producer.init_transactions()
        for number in range(12):
            producer.begin_transaction()
            for partition in (0, 1):
                producer.send_table(topic, {"value": values}, partition=partition)
            producer.flush()
            if number % 3 == 1:
                producer.abort_transaction()
                continue
            producer.commit_transaction()
            kept += 2000
    expected = kept if isolation == "read_committed" else 24_000
    tables = []
    for direct in ("auto", "never"):
        with _consumer(broker, topic, direct_reads=direct, isolation_level=isolation) as consumer:
            tables.append(_read(consumer, expected))
            assert not consumer.poll(200)
            assert (consumer.statistics().mapped_bytes > 0) == (direct == "auto")
    assert tables[0].num_rows == expected
    assert tables[0].equals(tables[1])


def test_reading_from_the_middle_of_a_file(broker: EmbeddedBroker) -> None:
    with Admin(broker.bootstrap_servers) as admin, Producer(broker.bootstrap_servers) as producer:
        admin.create_topic("middle", partitions=1)
        producer.send_table("middle", {"value": [b"%d" % number * 50 for number in range(20_000)]})
    with _consumer(broker, "middle") as consumer:
        for start in (0, 777, 15_001, 3):
            consumer.seek(("middle", 0), start)
            table = _read(consumer, 20_000 - start)
            assert table.column("__offset").to_pylist() == list(range(start, 20_000))
        assert consumer.statistics().mapped_bytes


def test_prefetched_records_stay_within_their_bound(broker: EmbeddedBroker) -> None:
    partitions, rows = 8, 2000
    with Admin(broker.bootstrap_servers) as admin, Producer(broker.bootstrap_servers) as producer:
        admin.create_topic("bounded", partitions=partitions)
        for partition in range(partitions):
            producer.send_table("bounded", {"value": [b"x" * 500] * rows}, partition=partition)
    bound = 3_000_000
    limits = {"fetch_buffer_bytes": bound, "max_partition_fetch_bytes": 1_100_000, "max_poll_records": 100}
    with _consumer(broker, "bounded", direct_reads="never", **limits) as consumer:
        seen = 0
        stall = Stall("records")
        while seen < partitions * rows:
            stall.check(seen)
            seen += len(consumer.poll(100))
            statistics = consumer.statistics()
            # The first batch is sent whatever its size, and may be larger than the requested size.
            assert statistics.waiting_bytes <= bound + 1_100_000
            assert statistics.asked_bytes <= bound


def test_paused_partitions_do_not_keep_others_waiting(broker: EmbeddedBroker) -> None:
    with Admin(broker.bootstrap_servers) as admin, Producer(broker.bootstrap_servers) as producer:
        admin.create_topic("crowded", partitions=3)
        for partition in range(3):
            producer.send_table("crowded", {"value": [b"x" * 500] * 4000}, partition=partition)
    limits = {"fetch_buffer_bytes": 1_500_000, "max_partition_fetch_bytes": 1_000_000}
    with _consumer(broker, "crowded", direct_reads="never", **limits) as consumer:
        consumer.poll(5000, max_records=10)
        consumer.pause([("crowded", 0), ("crowded", 1)])
        stall = Stall("the third partition")
        while (position := consumer.position(("crowded", 2))) < 4000:
            stall.check(position)
            consumer.poll(100)
        consumer.resume(consumer.paused())
        assert _read(consumer, 8000 - consumer.position(("crowded", 0)) - consumer.position(("crowded", 1))).num_rows


def test_fetched_records_are_returned_before_the_position_is_reset(broker: EmbeddedBroker) -> None:
    topic = "retained"
    with Admin(broker.bootstrap_servers) as admin, Producer(broker.bootstrap_servers) as producer:
        admin.create_topic(topic, partitions=1)
        for _ in range(10):
            producer.send_table(topic, {"value": [b"x" * 1000] * 100}).result(STALL_S)
        with _consumer(broker, topic, direct_reads="never", max_partition_fetch_bytes=150_000) as consumer:
            read: list[int] = []
            stall = Stall("all records")
            while not read or read[-1] < 999:
                stall.check(len(read))
                read += [record.offset for record in consumer.poll(0, max_records=10)]
                # Let the next poll find the answer to each fetch.
                eventually(lambda: consumer._fetcher._answers or not consumer.statistics().asked_bytes)
                if len(read) == 10:
                    admin.delete_records({TopicPartition(topic, 0): 900})
    fetched = read.index(900)
    assert read == [*range(fetched), *range(900, 1000)]
    assert fetched % 100 == 0
