"""Clients and broker killed with SIGKILL while they work: what clients wrote down afterwards shows no anomaly.

A failing run prints its seed and leaves the records of its clients; ``HISTORY_SEED`` repeats the choice of victims.
"""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest

from millrace.clients import Admin, Consumer, TopicPartition
from millrace.errors import MillraceError

from .checker import anomalies, processing_anomalies
from .clients import INPUT, OUTPUT, PARTITIONS, TRANSFORMERS, reads_of
from .cluster import BrokerProcess, ClientProcess, wait_for
from .history import Read, load

ROLES = {"writer": 1, "transactor": 2, "reader": 2, "transformer": 2, "monitor": 1}
BROKER_SHARE = 0.35


@contextmanager
def working(directory: Path) -> Iterator[tuple[BrokerProcess, list[ClientProcess]]]:
    """A broker with its topics, and clients of all roles."""
    records = directory / "records"
    records.mkdir()
    broker = BrokerProcess(directory)
    clients: list[ClientProcess] = []
    try:
        with Admin(broker.address) as admin:
            for topic in (INPUT, OUTPUT):
                admin.create_topic(topic, partitions=PARTITIONS)
        for role, count in ROLES.items():
            for number in range(count):
                clients.append(ClientProcess(role, number, broker.address, records, [INPUT]))
        yield broker, clients
    finally:
        for client in clients:
            if not client.has_ended:
                client.end(signal.SIGKILL)
        if broker.is_running:
            broker.end(signal.SIGKILL)


@pytest.mark.dial("HISTORY_KILL_ROUNDS", seconds=15)
def test_no_anomaly_while_clients_and_broker_are_killed(tmp_path: Path, rounds: int) -> None:
    seed = os.environ.get("HISTORY_SEED", str(time.time_ns()))
    print(f"HISTORY_SEED={seed}")
    chance = random.Random(seed)
    with working(tmp_path) as (broker, clients):
        for _ in range(rounds):
            _let_work(clients)
            if chance.random() < BROKER_SHARE:
                broker.end(signal.SIGKILL)
                broker.start()
            else:
                victim = chance.choice(clients)
                victim.end(signal.SIGKILL)
                victim.start()
        _let_work(clients)
        writers = [client for client in clients if client.role in ("writer", "transactor")]
        others = [client for client in clients if client not in writers]
        _end(writers)
        ends = {TopicPartition(*read.place): read.offset + 1 for read in _everything(broker.address, INPUT)}
        _replacing(others, "all inputs to be processed", lambda: _is_processed(broker.address, ends))
        _end(others)
        final = _everything(broker.address, INPUT, OUTPUT)
    history = load(tmp_path / "records")
    assert len(history.writes) > 10 * rounds
    assert history.polls
    assert history.commits
    inputs, outputs = _values(final, INPUT), _values(final, OUTPUT)
    assert anomalies(history, final) == []
    assert processing_anomalies(inputs, outputs, is_finished=True) == []


def _end(clients: list[ClientProcess]) -> None:
    for client in clients:
        client.end(signal.SIGTERM)


def _values(reads: list[Read], topic: str) -> list[str]:
    return [read.value for read in reads if read.place.topic == topic]


def _let_work(clients: list[ClientProcess]) -> None:
    """Wait until every client has got on."""
    sizes = {client.slot: (client.record, client.size_bytes) for client in clients}

    def got_on() -> bool:
        return all(
            client.size_bytes > 0 and (client.record, client.size_bytes) != sizes[client.slot] for client in clients
        )

    _replacing(clients, "all clients to get on", got_on)


def _replacing(clients: list[ClientProcess], what: str, condition: Callable[[], bool]) -> None:
    """Wait for a condition; clients that cannot go on are replaced meanwhile."""

    def holds() -> bool:
        for client in clients:
            if client.has_ended:
                client.start()
        return condition()

    wait_for(what, holds)


def _is_processed(address: str, ends: Mapping[TopicPartition, int]) -> bool:
    with Admin(address) as admin:
        try:
            committed = admin.list_group_offsets(TRANSFORMERS)
        except MillraceError:
            return False
    return all(place in committed and committed[place].offset >= end for place, end in ends.items())


def _everything(address: str, *topics: str) -> list[Read]:
    """All that is committed, in the order of offsets, once nothing is undecided any more."""
    options = {"bootstrap.servers": address, "auto.offset.reset": "earliest", "enable.auto.commit": "false"}
    places = [TopicPartition(topic, number) for topic in topics for number in range(PARTITIONS)]
    reads: list[Read] = []
    with (
        Consumer({**options, "isolation.level": "read_committed"}) as consumer,
        Consumer({**options, "isolation.level": "read_uncommitted"}) as other,
    ):
        wait_for("open transactions to end", lambda: consumer.end_offsets(places) == other.end_offsets(places))
        ends = consumer.end_offsets(places)
        consumer.assign(places)
        while any(consumer.position(place) < ends[place] for place in places):
            reads += reads_of(consumer.poll(1000, max_records=10_000))
    return sorted(reads, key=lambda read: (read.place, read.offset))
