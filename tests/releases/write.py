"""The data of a release, written with the code of the release.

Usage: ``python write.py DIRECTORY``.

The directory then has the data directory of a broker (``broker``), and the checkpoints and Delta tables of a Spark
query and of a topology. ``contents.py`` says what is in them. ``make release`` runs this program.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

from contents import (
    ABORTED,
    COMMITTED,
    GROUP_OFFSETS,
    NOW_MS,
    OPAQUE,
    ORDERS,
    PAYLOAD_SCHEMA,
    ROWS_OF_VERSION,
    TYPED,
    TYPED_LATER,
    orders,
)
from topology import topology

from millrace.clients import Admin, Consumer, Producer, RegisteredSchema, TopicPartition
from millrace.payloads import PayloadKind
from millrace_broker.testing import EmbeddedBroker
from millrace_streams import run_stream
from pyspark_millrace import session
from pyspark_millrace.delta import ingest

CLEANING_SECONDS_MAX = 120.0
FOREVER = {"retention.ms": "-1"}


def write_topics(servers: dict[str, str]) -> None:
    """Write topics of all kinds."""
    with Admin(servers) as admin:
        admin.create_topic("opaque", partitions=2, configs=FOREVER)
        admin.create_topic("typed", partitions=1, schema=TYPED, key_columns=["id"], configs=FOREVER)
        admin.create_topic("orders", partitions=2, schema=TYPED, key_columns=["city"], configs=FOREVER)
        schema = RegisteredSchema(id=7, kind=PayloadKind.AVRO, text=PAYLOAD_SCHEMA, subjects=(("orders-value", 1),))
        admin.register_payload_schemas([schema])
    with Producer(servers) as producer:
        for number, (key, value) in enumerate(OPAQUE):
            headers = {"number": str(number).encode()}
            producer.send("opaque", value, key=key, partition=number % 2, headers=headers, timestamp_ms=NOW_MS)
        producer.send_table("typed", orders(0, ROWS_OF_VERSION))
        producer.send_table("orders", orders(0, ORDERS))
    with Admin(servers) as admin:
        admin.evolve_schema("typed", TYPED_LATER)
    with Producer(servers) as producer:
        later = [{**row, "tip": 0.5} for row in orders(ROWS_OF_VERSION, ROWS_OF_VERSION)]
        producer.send_table("typed", later)


def write_compacted(servers: dict[str, str]) -> None:
    """Write a compacted topic, and wait until the cleaner has removed records."""
    with Admin(servers) as admin:
        configs = {"cleanup.policy": "compact", "segment.bytes": "4096", "min.cleanable.dirty.ratio": "0.01"}
        admin.create_topic("compacted", partitions=1, configs=configs)
    with Producer(servers) as producer:
        for number in range(100):
            producer.send("compacted", f"value {number}", key=f"key {number % 10}", timestamp_ms=NOW_MS).result()
        producer.send("compacted", None, key="key 0", timestamp_ms=NOW_MS).result()
        for _ in range(100):  # records of another key, so that the segments with the others are sealed
            producer.send("compacted", "x" * 100, key="filler", timestamp_ms=NOW_MS).result()
    deadline = time.monotonic() + CLEANING_SECONDS_MAX
    while count(servers, "compacted") >= 201:
        if time.monotonic() > deadline:
            raise TimeoutError("the topic compacted was not cleaned")
        time.sleep(0.1)


def count(servers: dict[str, str], topic: str) -> int:
    """Count the records of partition 0."""
    partition = TopicPartition(topic, 0)
    with Admin(servers) as admin:
        end = admin.list_offsets({partition: "latest"})[partition].offset
    found = 0
    with Consumer(servers) as consumer:
        consumer.assign([partition])
        consumer.seek_to_beginning()
        while consumer.position(partition) < end:
            found += len(consumer.poll(timeout_ms=1000))
    return found


def write_transactions(servers: dict[str, str]) -> None:
    """Commit one transaction and abort another one."""
    with Admin(servers) as admin:
        admin.create_topic("transactional", partitions=1, configs=FOREVER)
    with Producer({**servers, "transactional.id": "writer"}) as producer:
        producer.init_transactions()
        with producer.transaction():
            for value in COMMITTED:
                producer.send("transactional", value)
        producer.begin_transaction()
        for value in ABORTED:
            producer.send("transactional", value)
        producer.flush()
        producer.abort_transaction()


def write_group(servers: dict[str, str]) -> None:
    """Commit the offsets of a consumer group, and set an option of the topic."""
    with Admin(servers) as admin:
        offsets = {TopicPartition("opaque", partition): offset for partition, offset in GROUP_OFFSETS.items()}
        admin.alter_group_offsets("readers", offsets)
        admin.alter_configs("opaque", {"max.message.bytes": "2000000"})


def run_spark(servers: dict[str, str], directory: Path) -> None:
    """Copy a topic into a Delta table, and run a topology over it."""
    spark = session("data of a release", master="local[2]", **{"spark.ui.enabled": False})
    source = {"kafka.bootstrap.servers": servers["bootstrap.servers"], "subscribe": "orders"}
    ingest(
        spark,
        {**source, "startingOffsets": "earliest", "includeMetadata": "true"},
        str(directory / "tables" / "orders"),
        checkpoint=str(directory / "checkpoints" / "orders"),
    ).awaitTermination()
    run_stream(
        topology(),
        spark,
        tables=str(directory / "tables" / "totals"),
        checkpoint=str(directory / "checkpoints" / "totals"),
        bootstrap_servers=servers["bootstrap.servers"],
        available_now=True,
    ).awaitTermination()
    spark.stop()


def main(directory: Path) -> None:
    """Write everything into ``directory``."""
    options = {"log.cleaner.backoff.ms": "50", "log.segment.delete.delay.ms": "0", "offsets.topic.num.partitions": "1"}
    options |= {"transaction.state.log.num.partitions": "1", "share.coordinator.state.topic.num.partitions": "1"}
    with EmbeddedBroker(directory / "broker", options=options) as broker:
        servers = {"bootstrap.servers": broker.bootstrap_servers}
        write_topics(servers)
        write_compacted(servers)
        write_transactions(servers)
        write_group(servers)
        run_spark(servers, directory)


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve())
