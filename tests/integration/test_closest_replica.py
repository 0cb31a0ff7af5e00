"""Tests of consumers that read from the closest replica (KIP-392).

The leader is a real broker behind a listener that changes two answers. The metadata names a second broker, and the
answer to a fetch from its rack names that broker as preferred read replica. The replica is another real broker with
records of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import pytest

from millrace.clients import Admin, Consumer, Producer, TopicPartition
from millrace.protocol import millrace_pb2 as pb
from millrace_broker.replication.core import ReplicaView, preferred_read_replica
from millrace_broker.testing import EmbeddedBroker

from .waiting import STALL_S, Stall

_ANSWERED_BY: Any = grpc.unary_unary_rpc_method_handler  # the stubs have no type for it
TOPIC = "orders"
PARTITION = TopicPartition(TOPIC, 0)
RECORDS = 10
LEADER_ID, REPLICA_ID = 0, 1


class Leader(grpc.GenericRpcHandler):  # type: ignore[type-arg]  # generic in its stubs only
    """A listener before the leader. It forwards calls, and answers those that need a broker with followers."""

    def __init__(self, leader: EmbeddedBroker, replica_port: int) -> None:
        self._channel = grpc.insecure_channel(leader.grpc_address)
        self._replica_port = replica_port
        self.replica_end = RECORDS
        """The end offset of the replica's log as the leader knows it."""
        self.fetches: list[int] = []
        """Offsets that were fetched here."""
        self._server = grpc.server(ThreadPoolExecutor(8))
        self._server.add_generic_rpc_handlers([self])
        self.port = self._server.add_insecure_port("127.0.0.1:0")
        self._server.start()

    def service(self, details: grpc.HandlerCallDetails) -> Any:
        forward: Any = self._channel.unary_unary(details.method, None, None)
        answers: dict[str, Callable[[bytes, Any], bytes]] = {
            "Metadata": self._metadata,
            "Fetch": self._fetch,
        }
        answer: Callable[[bytes, Any], bytes] = answers.get(details.method.rsplit("/")[-1], _pass_on)
        return _ANSWERED_BY(lambda request, context: answer(request, forward))

    def _metadata(self, request: bytes, call: Callable[..., bytes]) -> bytes:
        response = pb.MetadataResponse.FromString(call(request, timeout=STALL_S))
        del response.brokers[:]
        response.brokers.add(node_id=LEADER_ID, host="127.0.0.1", port=self.port, rack="far")
        response.brokers.add(node_id=REPLICA_ID, host="127.0.0.1", port=self._replica_port, rack="near")
        return response.SerializeToString()

    def _fetch(self, request: bytes, call: Callable[..., bytes]) -> bytes:
        asked = pb.FetchRequest.FromString(request)
        offset = asked.topics[0].partitions[0].fetch_offset
        self.fetches.append(offset)
        named = preferred_read_replica(
            asked.rack_id, offset, _view(LEADER_ID, "far", RECORDS), [_view(REPLICA_ID, "near", self.replica_end)]
        )
        if named is None:
            return call(request, timeout=STALL_S)
        response = pb.FetchResponse()
        topic = response.topics.add(name=TOPIC)
        topic.partitions.add(partition=0, high_watermark=RECORDS, preferred_read_replica=named)
        return response.SerializeToString()

    def close(self) -> None:
        self._server.stop(0).wait()
        self._channel.close()


def _pass_on(request: bytes, call: Callable[..., bytes]) -> bytes:
    return call(request, timeout=STALL_S)


def _view(broker_id: int, rack: str, end: int) -> ReplicaView:
    return ReplicaView(
        broker_id=broker_id, rack=rack, log_start_offset=0, log_end_offset=end, caught_up_ms_ago=0, is_in_sync=True
    )


def _fill(broker: EmbeddedBroker, name: str, records: int) -> None:
    with Admin(broker.bootstrap_servers) as admin, Producer(broker.bootstrap_servers) as producer:
        admin.create_topic(TOPIC)
        producer.send_table(TOPIC, {"value": [f"{name} {number}".encode() for number in range(records)]})


class Pair:
    """The leader and its replica, which lacks the last records."""

    def __init__(self, directory: Path, replica_records: int) -> None:
        self.far = EmbeddedBroker(directory / "far").start()
        self.near = EmbeddedBroker(directory / "near").start()
        _fill(self.far, "far", RECORDS)
        _fill(self.near, "near", replica_records)
        self.leader = Leader(self.far, self.near.server.grpc_address.port)

    def consumer(self, rack: str, **options: Any) -> Consumer:
        consumer = Consumer(
            {
                "bootstrap.servers": f"127.0.0.1:{self.leader.port}",
                "transport": "grpc",
                "client.rack": rack,
                "auto.offset.reset": "earliest",
                "direct.reads": "never",
                "fetch.max.wait.ms": 50,
                **options,
            }
        )
        consumer.assign([PARTITION])
        return consumer

    def close(self) -> None:
        self.leader.close()
        self.far.stop()
        self.near.stop()


@pytest.fixture
def pair(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Pair]:
    made = Pair(tmp_path, getattr(request, "param", RECORDS))
    yield made
    made.close()


def _read(consumer: Consumer, count: int) -> list[str]:
    values: list[str] = []
    stall = Stall("records")
    while len(values) < count:
        stall.check(len(values))
        values += [record.value.decode() for record in consumer.poll(100)]  # type: ignore[union-attr]
    return values


def test_a_consumer_reads_in_its_rack_and_others_from_the_leader(pair: Pair) -> None:
    with pair.consumer("near") as consumer:
        assert _read(consumer, RECORDS) == [f"near {number}" for number in range(RECORDS)]
        assert pair.leader.fetches == [0]
    for rack in ("", "elsewhere"):
        with pair.consumer(rack) as consumer:
            assert _read(consumer, RECORDS) == [f"far {number}" for number in range(RECORDS)]


def test_the_leader_is_asked_again_after_the_metadatas_age(pair: Pair) -> None:
    with pair.consumer("near", **{"metadata.max.age.ms": 300}) as consumer:
        _read(consumer, RECORDS)
        pair.leader.replica_end = RECORDS - 1  # from now on the replica keeps the consumer
        stall = Stall("fetches from the leader")
        while pair.leader.fetches.count(RECORDS) < 2:
            stall.check()
            consumer.poll(50)
        consumer.seek(PARTITION, 3)
        pair.leader.replica_end = 0
        assert _read(consumer, RECORDS - 3) == [f"far {number}" for number in range(3, RECORDS)]


def test_a_consumer_continues_at_the_leader_after_its_replica_has_stopped(pair: Pair) -> None:
    with pair.consumer("near") as consumer:
        _read(consumer, RECORDS)
        pair.near.stop()
        pair.leader.replica_end = 0
        consumer.seek(PARTITION, 3)
        assert _read(consumer, RECORDS - 3) == [f"far {number}" for number in range(3, RECORDS)]


@pytest.mark.parametrize("pair", [5], indirect=True)
def test_a_replica_that_lags_does_not_reset_a_position(pair: Pair) -> None:
    with pair.consumer("near") as consumer:
        assert _read(consumer, 5) == [f"near {number}" for number in range(5)]
        consumer.seek(PARTITION, 7)  # an offset that the replica lacks, although the leader expects it there
        pair.leader.replica_end = 5
        assert _read(consumer, 3) == ["far 7", "far 8", "far 9"]
        assert pair.leader.fetches[0] == 0
        assert 7 in pair.leader.fetches
