"""Tests of the metadata cache."""

from __future__ import annotations

from typing import Any

import pytest

from millrace.clients.connections import Connections
from millrace.clients.leaders import group_by_leader
from millrace.clients.metadata import MetadataCache
from millrace.clients.model import TopicPartition
from millrace.config.client import ClientConfig
from millrace.errors import UnknownTopicOrPartitionError
from millrace.protocol import millrace_pb2 as pb

from ...integration.waiting import AN_HOUR_MS

PARTITIONS = [TopicPartition("t", number) for number in range(3)]


class Broker:
    """A broker with topic ``t``, whose partitions have the given leaders.

    The broker counts the calls of Metadata.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch, retry_backoff_ms: int) -> None:
        self.leaders = [-1, -1, -1]
        self.calls = 0
        config = ClientConfig.of({"bootstrap.servers": "a:1", "retry.backoff.ms": retry_backoff_ms})
        connections = Connections(config)
        monkeypatch.setattr(connections, "call", self._call)
        self.metadata = MetadataCache(connections)

    def _call(self, method: Any, request: pb.MetadataRequest, **options: Any) -> pb.MetadataResponse:
        self.calls += 1
        response = pb.MetadataResponse(brokers=[pb.BrokerNode(node_id=7, host="a", port=1)])
        for name in request.topics:
            topic = response.topics.add(name=name, topic_id=bytes(16))
            if name != "t":
                topic.error.code = UnknownTopicOrPartitionError.code
                continue
            for number, leader in enumerate(self.leaders):
                topic.partitions.add(partition=number, leader=leader)
        return response


def test_a_topic_without_leaders_is_fetched_once_for_all_its_partitions(monkeypatch: pytest.MonkeyPatch) -> None:
    broker = Broker(monkeypatch, retry_backoff_ms=AN_HOUR_MS)
    for _ in range(2):
        by_address, without = group_by_leader(broker.metadata, PARTITIONS)
        assert not by_address
        assert list(without) == PARTITIONS
        assert broker.calls == 1


def test_leaders_that_were_elected_are_found_after_the_backoff(monkeypatch: pytest.MonkeyPatch) -> None:
    broker = Broker(monkeypatch, retry_backoff_ms=0)
    assert list(group_by_leader(broker.metadata, PARTITIONS)[1]) == PARTITIONS
    broker.leaders = [7, -1, 7]
    assert group_by_leader(broker.metadata, PARTITIONS)[0] == {"a:1": [PARTITIONS[0], PARTITIONS[2]]}


def test_topics_that_exist_are_found_beside_others(monkeypatch: pytest.MonkeyPatch) -> None:
    broker = Broker(monkeypatch, retry_backoff_ms=0)
    topics, missing = broker.metadata.find(["t", "none"])
    assert ([topic.name for topic in topics], missing, broker.calls) == (["t"], ["none"], 1)
    with pytest.raises(UnknownTopicOrPartitionError, match="topic none does not exist"):
        broker.metadata.fetch(["t", "none"])
