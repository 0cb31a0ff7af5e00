"""Tests of a broker with several log directories, of which some fail.

The tests cover the errors of clients and the stop of the broker.
"""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from millrace.clients import Admin, Consumer, Producer, TopicPartition
from millrace.errors import MillraceError, RequestTimedOutError, StorageError
from millrace.kafka_protocol.calls.describe_topic_partitions import DescribeTopicPartitionsRequest, TopicRequest
from millrace.kafka_protocol.calls.metadata import MetadataRequest, MetadataRequestTopic
from millrace_broker.log import OsFiles
from millrace_broker.log.files import OsFile
from millrace_broker.testing import EmbeddedBroker

from .kafka_wire import KafkaWire
from .waiting import STALL_S, run_to_end

PARTITIONS = 4


class BreakingFiles(OsFiles):
    """A disk that a test can break."""

    def __init__(self) -> None:
        self.broken: list[Path] = []

    def open(self, path: Path, *, create: bool = False) -> OsFile:
        if any(path.is_relative_to(broken) for broken in self.broken):
            raise StorageError(f"cannot open {path}: Input/output error") from OSError(errno.EIO, "Input/output error")
        return super().open(path, create=create)


@pytest.fixture
def files(monkeypatch: pytest.MonkeyPatch) -> BreakingFiles:
    breaking = BreakingFiles()
    monkeypatch.setattr("millrace_broker.opening.OsFiles", lambda: breaking)
    return breaking


@pytest.fixture
def start(tmp_path: Path, files: BreakingFiles) -> Callable[[], EmbeddedBroker]:
    return lambda: EmbeddedBroker(",".join(str(tmp_path / name) for name in "abc"))


def send(producer: Producer, partition: int) -> int:
    return producer.send("orders", b"value", partition=partition).result(STALL_S).offset


def read(broker: EmbeddedBroker, partition: int) -> list[int]:
    with Consumer({"bootstrap.servers": broker.bootstrap_servers, "auto.offset.reset": "earliest"}) as consumer:
        consumer.assign([TopicPartition("orders", partition)])
        found: list[int] = []
        while not found:
            found += [record.offset for record in consumer.poll(5)]
        return found


def offline_replicas(broker: EmbeddedBroker) -> dict[int, tuple[int, ...]]:
    """Return the offline replicas of each partition, which Kafka's two calls describe alike (KIP-112)."""
    metadata = MetadataRequest(topics=(MetadataRequestTopic(name="orders"),))
    partitions = DescribeTopicPartitionsRequest(topics=(TopicRequest(name="orders"),), cursor=None)
    with KafkaWire(broker) as wire:
        by_metadata = wire.call(metadata, 12).topics[0].partitions
        described = wire.call(partitions, 0).topics[0].partitions
    found = {each.partition_index: each.offline_replicas for each in by_metadata}
    assert {each.partition_index: each.offline_replicas for each in described} == found
    return found


def options(broker: EmbeddedBroker, **more: Any) -> dict[str, Any]:
    return {
        "bootstrap.servers": broker.bootstrap_servers,
        "linger.ms": 0,
        "request.timeout.ms": 2000,
        "delivery.timeout.ms": 3000,
    } | more


def test_a_failed_log_directory_is_offline_and_the_others_serve(
    start: Callable[[], EmbeddedBroker], files: BreakingFiles, tmp_path: Path
) -> None:
    with start() as broker, Admin(broker.bootstrap_servers) as admin:
        admin.create_topic("orders", partitions=PARTITIONS)
        homes = {
            directory: sorted(path.name for path in (tmp_path / directory).glob("orders-*")) for directory in "abc"
        }
        assert homes == {"a": ["orders-0", "orders-3"], "b": ["orders-1"], "c": ["orders-2"]}
        files.broken.append(tmp_path / "b")
        with Producer(options(broker)) as producer:
            # the operation was retried
            with pytest.raises(RequestTimedOutError, match=r"orders-1 has no leader at the moment: no replica in sync"):
                send(producer, 1)
            assert [send(producer, partition) for partition in (0, 2, 3)] == [0, 0, 0]
        assert read(broker, 3) == [0]
        assert offline_replicas(broker) == {0: (), 1: (0,), 2: (), 3: ()}
        admin.create_topic("parcels", partitions=1)
        assert (tmp_path / "c" / "parcels-0").exists()
        assert broker.server.broker.failure.error is None

    with start() as broker, Producer(options(broker)) as producer:  # offline from the start
        assert send(producer, 0) == 1
        with pytest.raises(MillraceError, match=r"orders-1"):
            send(producer, 1)

    files.broken.clear()
    with start() as broker, Producer(options(broker)) as producer:
        assert [send(producer, partition) for partition in range(PARTITIONS)] == [2, 0, 1, 1]
        assert not any(offline_replicas(broker).values())


def test_a_broker_stops_with_its_last_directory(
    start: Callable[[], EmbeddedBroker], files: BreakingFiles, tmp_path: Path
) -> None:
    with start() as broker, Admin(broker.bootstrap_servers) as admin:
        admin.create_topic("orders", partitions=3)
        files.broken.append(tmp_path)
        with Producer(options(broker)) as producer, pytest.raises(MillraceError):
            send(producer, 0)
        assert broker._thread is not None
        broker._thread.join(STALL_S)
        assert not broker._thread.is_alive()
        failure = broker.server.broker.failure.error
        assert failure is not None
        assert "the log directory with the metadata has failed: cannot open" in failure.message


def test_the_process_says_why_it_does_not_start(tmp_path: Path) -> None:
    (tmp_path / "good").mkdir()
    (tmp_path / "bad").write_text("in its place")
    command = [sys.executable, "-m", "millrace.cli.main", "broker", "--listen", "127.0.0.1:0", "--data-dir"]
    environment = os.environ | {"PYTHONUNBUFFERED": "1"}
    served = subprocess.Popen(
        [*command, f"{tmp_path}/good,{tmp_path}/bad"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
    )
    assert served.stdout is not None
    assert "listening" in served.stdout.readline()
    served.send_signal(signal.SIGTERM)
    _, told = served.communicate(timeout=STALL_S)
    assert served.returncode == 0
    assert f"log directory {tmp_path}/bad is offline: cannot make directory" in told

    refused = run_to_end([*command, f"{tmp_path}/bad,{tmp_path}/good"], env=environment)
    assert refused.returncode == 1
    assert f"{tmp_path}/bad" in refused.stderr
