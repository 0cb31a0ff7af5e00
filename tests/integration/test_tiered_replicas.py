"""Tests of tiered topics with replicas.

Only the leader copies segments. A new leader continues, and copies outlive their replicas.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest

from millrace.clients import Admin, Consumer, Producer, TopicPartition
from millrace.errors import UnknownTopicOrPartitionError
from millrace_broker.log.tiered.names import ManifestName, parse_manifest_name

from .broker_cluster import Cluster
from .waiting import eventually
from .zookeeper_server import ZooKeeperServer

QUICK = {
    "remote.log.storage.system.enable": "true",
    "remote.log.manager.task.interval.ms": "50",
    "log.retention.check.interval.ms": "50",
    "log.initial.task.delay.ms": "0",
    "log.segment.delete.delay.ms": "0",
}
TIERED = {
    "remote.storage.enable": "true",
    "segment.bytes": "4000",
    "local.retention.bytes": "1",
    "retention.ms": "-1",
    "flush.messages": "1",
}


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the directory to which all brokers copy."""
    return tmp_path_factory.mktemp("store")


@pytest.fixture(scope="module")
def cluster(
    zookeeper_server: ZooKeeperServer, tmp_path_factory: pytest.TempPathFactory, store: Path
) -> Iterator[Cluster]:
    options = {name.replace(".", "_"): value for name, value in QUICK.items()}
    directory = tmp_path_factory.mktemp("cluster")
    with Cluster(zookeeper_server, directory, remote_log_storage_uri=store.as_uri(), **options) as cluster:
        cluster.start(1, 2, 3)
        yield cluster


class Tiered:
    """A tiered topic of one partition.

    Its written records and its copies in the store are known.
    """

    def __init__(self, cluster: Cluster, store: Path, name: str, replicas: list[int]) -> None:
        self.cluster, self.store, self.name, self.values = cluster, store, name, list[bytes]()
        cluster.admin.create_topic(name, assignment={0: replicas}, configs=TIERED)

    def write(self, count: int) -> None:
        """Write so many records with acks=all."""
        more = [b"%06d:" % number + b"x" * 60 for number in range(len(self.values), len(self.values) + count)]
        with Producer({"bootstrap.servers": self.cluster.bootstrap_servers, "acks": "all"}) as producer:
            for start in range(0, count, 20):
                producer.send_table(self.name, {"value": more[start : start + 20]}, partition=0)
                producer.flush()
        self.values += more

    def read(self) -> list[bytes]:
        """Read all records, from the disk or the store."""
        config = {"bootstrap.servers": self.cluster.bootstrap_servers, "auto.offset.reset": "earliest"}
        found: list[bytes] = []
        with Consumer(config) as consumer:
            consumer.assign([TopicPartition(self.name, 0)])
            while len(found) < len(self.values):
                found += [record.value or b"" for record in consumer.poll(5_000)]
        return found

    def copies(self) -> list[ManifestName]:
        """Return the copied segments by offset."""
        names = (path.name for path in self.store.glob(f"*{self.name}*/*"))
        return sorted(parsed for name in names if (parsed := parse_manifest_name(name)) is not None)

    def copied_up_to(self) -> int:
        return max((copy.end_offset for copy in self.copies()), default=0)

    def first_on_disk(self, broker_id: int) -> int:
        log = self.cluster.brokers[broker_id].server.broker.logs.get(self.name, 0)
        assert log is not None
        return log.first_base_offset


def without_gap_or_repetition(copies: list[ManifestName]) -> bool:
    return all(one.end_offset == next_one.copy.base_offset for one, next_one in pairwise(copies))


def test_the_leader_alone_copies_and_the_next_one_continues(cluster: Cluster, store: Path, topic: str) -> None:
    tiered = Tiered(cluster, store, topic, [1, 2])
    tiered.write(600)
    eventually(lambda: tiered.copied_up_to() > 500)
    eventually(lambda: min(tiered.first_on_disk(1), tiered.first_on_disk(2)) > 500)
    assert without_gap_or_repetition(tiered.copies())
    copied = tiered.copies()
    assert tiered.read() == tiered.values

    cluster.stop(1)
    tiered.write(400)
    eventually(lambda: tiered.copied_up_to() > 900)
    assert tiered.copies()[: len(copied)] == copied
    assert tiered.read() == tiered.values

    cluster.start(1)
    eventually(lambda: set(cluster.isr(topic)) == {1, 2})
    cluster.admin.elect_leaders()
    eventually(lambda: cluster.leader(topic) == 1)
    assert tiered.read() == tiered.values


def test_copies_stay_when_their_replica_moves_and_go_with_their_topic(
    cluster: Cluster, store: Path, topic: str
) -> None:
    tiered = Tiered(cluster, store, topic, [2])
    tiered.write(600)
    eventually(lambda: tiered.copied_up_to() > 500 and tiered.first_on_disk(2) > 500)
    copied = tiered.copies()
    cluster.admin.alter_partition_reassignments({TopicPartition(topic, 0): [3]})
    eventually(lambda: cluster.replicas(topic) == (3,) and not cluster.admin.list_partition_reassignments())
    eventually(lambda: cluster.brokers[2].server.broker.logs.get(topic, 0) is None)
    assert tiered.read() == tiered.values
    assert tiered.copies()[: len(copied)] == copied
    tiered.write(200)
    eventually(lambda: tiered.copied_up_to() > 700)
    assert tiered.read() == tiered.values

    cluster.admin.delete_topic(topic)
    with Admin({"bootstrap.servers": cluster.bootstrap_servers}) as admin, pytest.raises(UnknownTopicOrPartitionError):
        admin.describe_topic(topic)
    eventually(lambda: not list(store.glob(f"*{topic}*")))
