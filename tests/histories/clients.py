"""Clients of a history, as processes that may be killed anytime.

Usage: ``python -m tests.histories.clients ROLE ...``. The roles are:

* ``writer`` sends records and waits for their offsets
* ``transactor`` sends records in transactions, of which it aborts some
* ``reader`` is a group member that reads committed records and commits its offsets
* ``transformer`` is a group member that makes an output of each input, in transactions with its offsets
* ``monitor`` requests the committed offsets of the groups

A client ends on SIGTERM, or when an error says that it cannot continue. Then another client takes its place.
"""

from __future__ import annotations

import argparse
import random
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from millrace.clients import Admin, Consumer, ConsumerRecords, Producer, RebalanceListener, TopicPartition
from millrace.errors import MillraceError

from ..integration.waiting import STALL_S, pause
from .history import Outcome, Place, Read, Recorder

INPUT, OUTPUT = "input", "output"
PARTITIONS = 3
READERS, TRANSFORMERS = "readers", "transformers"
TRANSACTION_TIMEOUT_MS = 4_000
_CANNOT_GO_ON = 3


class Client:
    """Common parts of all roles.

    These are the broker's address, the history's file, and the signal to stop.
    """

    def __init__(self, bootstrap_servers: str, record: Path, slot: str, topics: Sequence[str]) -> None:
        self.bootstrap_servers = bootstrap_servers
        self.recorder = Recorder(record)
        self.slot = slot
        self.topics = topics
        self.is_stopping = False
        self._values = 0
        signal.signal(signal.SIGTERM, self._stop)

    def _stop(self, *_: Any) -> None:
        self.is_stopping = True

    def values(self) -> list[tuple[Place, str]]:
        """Return some new values and their partitions."""
        places = [
            Place(random.choice(self.topics), random.randrange(PARTITIONS)) for _ in range(random.randrange(1, 9))
        ]
        return [(place, self.new_value()) for place in places]

    def new_value(self) -> str:
        """Return a value that no client has sent."""
        self._values += 1
        return f"{self.recorder.process}:{self._values}"

    def producer(self, **options: Any) -> Producer:
        """Create a producer with short timeouts."""
        base = {"bootstrap.servers": self.bootstrap_servers, "batch.size": 4096}
        return Producer({**base, **{name.replace("_", "."): value for name, value in options.items()}})

    def transactional_producer(self) -> Producer:
        """Create a producer that takes over the transactional id of its predecessor in this slot."""
        producer = self.producer(transactional_id=self.slot, transaction_timeout_ms=TRANSACTION_TIMEOUT_MS)
        producer.init_transactions()
        return producer

    def consumer(self, group: str) -> Consumer:
        """Create a group member that reads committed records."""
        consumer = Consumer(
            {
                "bootstrap.servers": self.bootstrap_servers,
                "group.id": group,
                "isolation.level": "read_committed",
                "auto.offset.reset": "earliest",
                "enable.auto.commit": "false",
                "session.timeout.ms": 6_000,
                "heartbeat.interval.ms": 500,
                "max.poll.records": 50,
            }
        )
        consumer.subscribe(self.topics, listener=_Moves(self.recorder))
        return consumer


class _Moves(RebalanceListener):
    """A rebalance listener that records changes of a consumer's partitions."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder

    def on_partitions_assigned(self, partitions: Sequence[TopicPartition]) -> None:
        self._recorder.moved()

    def on_partitions_revoked(self, partitions: Sequence[TopicPartition]) -> None:
        self._recorder.moved()

    def on_partitions_lost(self, partitions: Sequence[TopicPartition]) -> None:
        self._recorder.moved()


def write(client: Client) -> None:
    """Run the role ``writer``. See the module."""
    with client.producer() as producer:
        while not client.is_stopping:
            values = client.values()
            number = client.recorder.begin(values, is_transaction=False)
            futures = [_send(producer, place, value) for place, value in values]
            offsets = [_offset(future) for future in futures]
            outcome = Outcome.UNKNOWN if None in offsets else Outcome.OK
            client.recorder.ended(number, outcome, offsets)


def transact(client: Client) -> None:
    """Run the role ``transactor``. See the module."""
    producer = client.transactional_producer()
    while not client.is_stopping:
        values = client.values()
        number = client.recorder.begin(values, is_transaction=True)
        producer.begin_transaction()
        futures = [_send(producer, place, value) for place, value in values]
        if random.random() < 0.25:
            client.recorder.ended(number, Outcome.FAILED)
            producer.abort_transaction()
        else:
            _commit(client, producer, number, futures)
    producer.close()


def read(client: Client) -> None:
    """Run the role ``reader``. See the module."""
    with client.consumer(READERS) as consumer:
        while not client.is_stopping:
            polled = _poll(client, consumer)
            if polled and random.random() < 0.5:
                consumer.commit()


def transform(client: Client) -> None:
    """Run the role ``transformer``. See the module."""
    producer = client.transactional_producer()
    with client.consumer(TRANSFORMERS) as consumer:
        while not client.is_stopping:
            reads = _poll(client, consumer)
            if not reads:
                continue
            outputs = [
                (Place(OUTPUT, random.randrange(PARTITIONS)), f"{read.value}>{client.new_value()}") for read in reads
            ]
            number = client.recorder.begin(outputs, is_transaction=True)
            producer.begin_transaction()
            futures = [_send(producer, place, value) for place, value in outputs]
            offsets = {TopicPartition(*read.place): read.offset + 1 for read in reads}
            try:
                producer.send_offsets_to_transaction(offsets, consumer.group_metadata())
            except MillraceError:
                client.recorder.ended(number, Outcome.FAILED)  # its commit was never requested
                raise
            _commit(client, producer, number, futures)
    producer.close()


def monitor(client: Client) -> None:
    """Run the role ``monitor``. See the module."""
    with Admin(client.bootstrap_servers) as admin:
        while not client.is_stopping:
            for group in (READERS, TRANSFORMERS):
                asked_ns = time.monotonic_ns()
                found = admin.list_group_offsets(group)
                offsets = {Place(f"{group}/{place.topic}", place.partition): at.offset for place, at in found.items()}
                client.recorder.committed(asked_ns, offsets)
            pause(0.2)


def _send(producer: Producer, place: Place, value: str) -> Any:
    return producer.send(place.topic, value.encode(), partition=place.partition)


def _offset(future: Any) -> int | None:
    try:
        return int(future.result(STALL_S).offset)
    except MillraceError:
        return None


def _commit(client: Client, producer: Producer, number: int, futures: Sequence[Any]) -> None:
    client.recorder.committing(number)
    producer.commit_transaction()  # after an error the outcome is unknown, and another client takes this one's place
    client.recorder.ended(number, Outcome.OK, [_offset(future) for future in futures])


def _poll(client: Client, consumer: Consumer) -> list[Read]:
    records = consumer.poll(200)
    reads = reads_of(records)
    client.recorder.polled(reads)
    return reads


def reads_of(records: ConsumerRecords) -> list[Read]:
    """Return the records of a poll."""
    reads = []
    for place in records.partitions():
        for record in records.records(place):
            assert isinstance(record.value, bytes)
            reads.append(Read(Place(record.topic, record.partition), record.offset, record.value.decode()))
    return reads


ROLES = {"writer": write, "transactor": transact, "reader": read, "transformer": transform, "monitor": monitor}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("role", choices=ROLES)
    parser.add_argument("bootstrap_servers")
    parser.add_argument("record", type=Path)
    parser.add_argument("--slot", required=True)
    parser.add_argument("--topics", nargs="+", default=[INPUT])
    arguments = parser.parse_args()
    client = Client(arguments.bootstrap_servers, arguments.record, arguments.slot, arguments.topics)
    try:
        ROLES[arguments.role](client)
    except MillraceError as error:
        print(f"{type(error).__name__}: {error.message}", file=sys.stderr)
        return _CANNOT_GO_ON
    return 0


if __name__ == "__main__":
    sys.exit(main())
