"""Tests of brokers that are killed and elected in random order.

Producers use acks=all meanwhile. Each acknowledged record is there once, in the order of sending, and all replicas have
the same bytes. A failed round prints its seed. With ``REPLICA_KILL_SEED`` the rounds begin with it and repeat the same
steps, though not at the same times.
"""

from __future__ import annotations

import os
import random
import threading
import time
from pathlib import Path

import pytest

from millrace.clients import Producer
from millrace.errors import MillraceError

from .replica_cluster import ReplicaCluster, values_of
from .waiting import STALL_S, eventually, pause

PARTITIONS = 3
STEPS = 8


class Chaos:
    """A controller that kills, starts and elects. Each partition always keeps a live replica in the ISR."""

    def __init__(self, cluster: ReplicaCluster, seed: int) -> None:
        self.cluster = cluster
        self.choose = random.Random(seed)
        self.done: list[str] = []

    def step(self) -> None:
        """Do one random action."""
        up, down = sorted(self.cluster.servers), sorted(set(self.cluster.ids) - set(self.cluster.servers))
        action = self.choose.choice([self.elect, self.kill, self.kill, self.stop, self.start, self.start])
        if action == self.start and down:
            self.start(self.choose.choice(down))
        elif action in (self.kill, self.stop) and len(up) == len(self.cluster.ids):
            self.go(self.choose.choice(up), is_killed=action == self.kill)
        else:
            self.elect()

    def elect(self) -> None:
        """Elect another in-sync replica of a partition."""
        partition = self.choose.randrange(PARTITIONS)
        leader = self.choose.choice(sorted(self.cluster.isr("t", partition) & set(self.cluster.servers)))
        self.done.append(f"{leader} leads {partition}")
        self.cluster.elect("t", leader, partition=partition)

    def kill(self) -> None:
        """Kill a broker. See ``go``."""

    def stop(self) -> None:
        """Stop a broker. See ``go``."""

    def go(self, broker_id: int, *, is_killed: bool) -> None:
        """End a broker, and elect other leaders for its partitions."""
        others = set(self.cluster.ids) - {broker_id}
        if not all(self.cluster.isr("t", each) & others for each in range(PARTITIONS)):
            return
        self.done.append(f"{broker_id} {'dies' if is_killed else 'stops'}")
        (self.cluster.kill if is_killed else self.cluster.stop)(broker_id)
        for each in range(PARTITIONS):
            left = sorted(self.cluster.isr("t", each) & set(self.cluster.servers))
            leader = self.cluster.leadership_of("t", each).leader
            self.cluster.elect("t", leader if leader in left else left[0], partition=each, isr=left)

    def start(self, broker_id: int) -> None:
        """Restart a broker."""
        self.done.append(f"{broker_id} comes back")
        self.cluster.start(broker_id)
        self.cluster.tell("t", broker_id)


class Sender:
    """A client that sends numbers to a partition until told to end.

    It keeps the acknowledged numbers.
    """

    def __init__(self, producer: Producer, partition: int) -> None:
        self.acknowledged: list[int] = []
        self.failed: list[MillraceError] = []
        self.is_over = False
        self._producer, self._partition = producer, partition
        self.thread = threading.Thread(target=self._send)
        self.thread.start()

    def _send(self) -> None:
        number = 0
        while not self.is_over:
            future = self._producer.send("t", b"%d" % number, partition=self._partition)
            try:
                future.result(3 * STALL_S)
                self.acknowledged.append(number)
            except MillraceError as error:
                self.failed.append(error)
                return
            number += 1


@pytest.mark.dial("REPLICA_KILL_ROUNDS", seconds=30)
def test_acknowledged_records_are_there_once_and_in_order(tmp_path: Path, rounds: int) -> None:
    first = int(os.environ.get("REPLICA_KILL_SEED", time.time_ns()))
    for seed in range(first, first + rounds):
        print(f"REPLICA_KILL_SEED={seed}")
        run(tmp_path / str(seed), seed)


def run(directory: Path, seed: int) -> None:
    """Run one round in a cluster of its own."""
    with ReplicaCluster(directory, options={"log.segment.bytes": "2000"}) as cluster:
        cluster.create("t", (1, 2, 3), (2, 3, 1), (3, 1, 2), min_insync_replicas="1")
        options = {
            "bootstrap.servers": ",".join(f"127.0.0.1:{port}" for port in cluster.addresses.values()),
            "enable.idempotence": True,
            "linger.ms": 0,
            "retry.backoff.ms": 5,
            "retry.backoff.max.ms": 50,
            "metadata.max.age.ms": 1000,
        }
        chaos = Chaos(cluster, seed)
        with Producer(options) as producer:
            senders = [Sender(producer, partition) for partition in range(PARTITIONS)]
            for _ in range(STEPS):
                chaos.step()
                pause(chaos.choose.random() * 0.4)
            for broker_id in sorted(set(cluster.ids) - set(cluster.servers)):
                chaos.start(broker_id)
            for partition in range(PARTITIONS):
                cluster.wait_for_isr("t", 1, 2, 3, partition=partition)
            counts = [len(sender.acknowledged) for sender in senders]
            eventually(lambda: all(len(s.acknowledged) > n for s, n in zip(senders, counts, strict=True)), "progress")
            for sender in senders:
                sender.is_over = True
            for sender in senders:
                sender.thread.join()
        assert [sender.failed for sender in senders] == [[]] * PARTITIONS, chaos.done
        for partition, sender in enumerate(senders):
            cluster.settle("t", partition)
            cluster.assert_identical("t", partition)
            found = [int(value) for value in values_of(cluster, "t", partition)]
            assert found == sender.acknowledged, chaos.done
