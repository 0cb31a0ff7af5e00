"""Test of clients and a broker that are killed with SIGKILL.

The histories must show no anomaly. A failed run prints its seed and keeps the records of its clients. ``HISTORY_SEED``
repeats the choice of victims.
"""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from millrace.clients import Admin, TopicPartition

from .checker import anomalies, processing_anomalies
from .clients import INPUT, OUTPUT, PARTITIONS
from .cluster import BrokerProcess, ClientProcess
from .history import load
from .work import end_all, everything, is_processed, let_work, replacing, values

ROLES = {"writer": 1, "transactor": 2, "reader": 2, "transformer": 2, "monitor": 1}
BROKER_SHARE = 0.35


@contextmanager
def working(directory: Path) -> Iterator[tuple[BrokerProcess, list[ClientProcess]]]:
    """Start a broker with its topics, and clients of all roles."""
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
            let_work(clients)
            if chance.random() < BROKER_SHARE:
                broker.end(signal.SIGKILL)
                broker.start()
            else:
                victim = chance.choice(clients)
                victim.end(signal.SIGKILL)
                victim.start()
        let_work(clients)
        writers = [client for client in clients if client.role in ("writer", "transactor")]
        others = [client for client in clients if client not in writers]
        end_all(writers)
        ends = {TopicPartition(*read.place): read.offset + 1 for read in everything(broker.address, INPUT)}
        replacing(others, "all inputs to be processed", lambda: is_processed(broker.address, ends))
        end_all(others)
        final = everything(broker.address, INPUT, OUTPUT)
    history = load(tmp_path / "records")
    assert len(history.writes) > 10 * rounds
    assert history.polls
    assert history.commits
    inputs, outputs = values(final, INPUT), values(final, OUTPUT)
    assert anomalies(history, final) == []
    assert processing_anomalies(inputs, outputs, is_finished=True) == []
