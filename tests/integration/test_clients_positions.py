"""Tests of offset look-ups while a leader cannot answer yet.

Calls retry, and polls read the other partitions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

import millrace_broker.api.list_offsets as list_offsets_api
from millrace.clients import Admin, Consumer, Producer, TopicPartition
from millrace.clients.metadata import MetadataCache
from millrace.errors import LeaderNotAvailableError, MillraceError, OffsetNotAvailableError, StorageError
from millrace_broker.testing import EmbeddedBroker

from .waiting import STALL_S, Stall


class Refusals:
    """Errors for the second partition of a topic, until ``is_over``.

    The broker raises them, or the client.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._patch = monkeypatch
        self.is_over = False
        self.count = 0

    def _refuse(self, error: MillraceError) -> None:
        if not self.is_over:
            self.count += 1
            raise error

    def at_the_broker(self, error: MillraceError, times: int) -> None:
        """Refuse the look-ups of offsets, some times."""

        find = list_offsets_api._find

        def refused(partition: Any, timestamp_ms: int, isolation_level: Any) -> tuple[int, int]:
            if partition.replica.name.endswith("-1"):
                self.is_over = self.is_over or self.count >= times
                self._refuse(error)
            return find(partition, timestamp_ms, isolation_level)

        self._patch.setattr(list_offsets_api, "_find", refused)

    def of_the_leader(self, error: MillraceError) -> None:
        """Refuse to name the leader."""
        look_up = MetadataCache.leader_address

        def leader_address(cache: MetadataCache, partition: TopicPartition, timeout_ms: int | None = None) -> str:
            if partition.partition == 1:
                self._refuse(error)
            return look_up(cache, partition, timeout_ms)

        self._patch.setattr(MetadataCache, "leader_address", leader_address)


@pytest.fixture
def refusals(monkeypatch: pytest.MonkeyPatch) -> Refusals:
    return Refusals(monkeypatch)


@pytest.fixture
def topic(module_broker: EmbeddedBroker, admin: Admin, request: pytest.FixtureRequest) -> str:
    """Create a topic with one record in each of two partitions."""
    name: str = "".join(each if each.isalnum() else "-" for each in request.node.name)
    admin.create_topic(name, partitions=2)
    with Producer(module_broker.bootstrap_servers) as producer:
        for partition in (0, 1):
            producer.send(name, b"%d" % partition, partition=partition).result(STALL_S)
    return name


@pytest.fixture
def consumer(module_broker: EmbeddedBroker, topic: str) -> Iterator[Consumer]:
    options = {"auto.offset.reset": "earliest", "retry.backoff.ms": 20, "retry.backoff.max.ms": 50}
    with Consumer({"bootstrap.servers": module_broker.bootstrap_servers, **options}) as made:
        made.assign([(topic, 0), (topic, 1)])
        yield made


def _poll_until(is_done: Callable[[list[int]], bool], consumer: Consumer) -> list[int]:
    """Poll until the condition holds for the partitions of the records, and return those."""
    seen: list[int] = []
    stall = Stall("the records")
    while not is_done(seen):
        stall.check(len(seen))
        seen += [record.partition for record in consumer.poll(100)]
    return seen


@pytest.mark.parametrize("error", [OffsetNotAvailableError("not yet"), StorageError("the log directory is offline")])
def test_a_look_up_of_offsets_retries_while_the_leader_does_not_know_them(
    admin: Admin, consumer: Consumer, topic: str, refusals: Refusals, error: MillraceError
) -> None:
    partitions = [TopicPartition(topic, 0), TopicPartition(topic, 1)]
    refusals.at_the_broker(error, times=2)
    found = admin.list_offsets(dict.fromkeys(partitions, "latest"))
    assert [found[partition].offset for partition in partitions] == [1, 1]
    refusals.is_over, refusals.count = False, 0
    assert consumer.end_offsets(partitions) == dict.fromkeys(partitions, 1)
    assert refusals.count == 2


def test_a_poll_reads_the_other_partitions_while_a_leader_does_not_know_its_offsets(
    consumer: Consumer, refusals: Refusals
) -> None:
    refusals.at_the_broker(OffsetNotAvailableError("not yet"), times=1_000_000)
    assert _poll_until(lambda seen: bool(seen) and refusals.count > 2, consumer) == [0]
    refusals.is_over = True
    assert _poll_until(bool, consumer) == [1]


def test_a_poll_reads_the_other_partitions_while_a_partition_has_no_leader(
    consumer: Consumer, refusals: Refusals
) -> None:
    refusals.of_the_leader(LeaderNotAvailableError("no leader"))
    assert _poll_until(lambda seen: bool(seen) and refusals.count > 2, consumer) == [0]
    refusals.is_over = True
    assert _poll_until(bool, consumer) == [1]
