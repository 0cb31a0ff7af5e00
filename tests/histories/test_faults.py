"""Test of three real brokers under faults.

The histories of the clients show no anomaly. Leaders and controllers are killed and paused, links cut in one or both
directions, disks filled, and all brokers restarted in turn. Each fault has its turn in a random order, for so many
rounds and at least ``FAULT_MINUTES``. A run reports its faults. A failed run prints its seed, and keeps the clients'
records and the brokers' output. ``FAULT_SEED`` repeats the order and the victims.
"""

from __future__ import annotations

import os
import random
import signal
import time
from collections import Counter
from pathlib import Path

import pytest

from millrace.clients import Admin, TopicPartition

from .checker import anomalies, processing_anomalies
from .clients import INPUT, OUTPUT, PARTITIONS
from .cluster import ClientProcess
from .faulty_cluster import FaultyCluster, last
from .history import load
from .work import end_all, everything, is_processed, let_work, replacing, values

ROLES = {"writer": 2, "transactor": 1, "reader": 1, "transformer": 1, "monitor": 1}
LONGEST_S = 6.0
"""Three times the brokers' session timeout."""


@pytest.mark.dial("FAULT_ROUNDS", seconds=40, minutes="FAULT_MINUTES")
def test_a_cluster_with_faults_shows_no_anomaly(tmp_path: Path, rounds: int) -> None:
    seed = os.environ.get("FAULT_SEED", str(time.time_ns()))
    print(f"FAULT_SEED={seed}")
    chance = random.Random(seed)
    records = tmp_path / "records"
    records.mkdir()
    clients: list[ClientProcess] = []
    with FaultyCluster(tmp_path, chance, has_disks=chance.random() < 0.5) as cluster:
        print("disks are full by", "ballast on a file system of their own" if cluster.has_disks else "RLIMIT_FSIZE")
        address = cluster.bootstrap_servers
        with Admin(address) as admin:
            for topic in (INPUT, OUTPUT):
                admin.create_topic(topic, partitions=PARTITIONS, replication_factor=3)
        try:
            for role, count in ROLES.items():
                clients += [ClientProcess(role, number, address, records, [INPUT]) for number in range(count)]
            let_work(clients)
            faults = cluster.faults(INPUT)
            turns: list[str] = []
            ran: Counter[str] = Counter()
            until = time.monotonic() + 60 * float(os.environ.get("FAULT_MINUTES", "0"))
            while ran.total() < rounds or time.monotonic() < until:
                turns = turns or chance.sample(sorted(faults), len(faults))
                what, seconds = turns.pop(), chance.uniform(0, LONGEST_S)
                print(f"{what}, for {seconds:.1f} s", flush=True)
                last(faults[what], seconds)
                ran[what] += 1
                cluster.wait_until_whole(INPUT, OUTPUT)
                let_work(clients)
            print(f"went wrong: {dict(ran)}; not in this run: {sorted(faults.keys() - ran)}")
            writers = [client for client in clients if client.role in ("writer", "transactor")]
            others = [client for client in clients if client not in writers]
            end_all(writers)
            ends = {TopicPartition(*read.place): read.offset + 1 for read in everything(address, INPUT)}
            replacing(others, "all inputs to be processed", lambda: is_processed(address, ends))
            end_all(others)
            final = everything(address, INPUT, OUTPUT)
        finally:
            for client in clients:
                if not client.has_ended:
                    client.end(signal.SIGKILL)
    history = load(records)
    assert len(history.writes) > 10 * ran.total()
    assert history.polls
    assert history.commits
    assert anomalies(history, final) == []
    assert processing_anomalies(values(final, INPUT), values(final, OUTPUT), is_finished=True) == []
