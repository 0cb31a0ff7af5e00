"""Tests of parked calls, which take memory and no place.

Brokers, members and operators have reserved room.
"""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from millrace.clients import Admin
from millrace.protocol import frames
from millrace.protocol import millrace_pb2 as pb
from millrace_broker.quotas import PARKED_CALL_BYTES, AdmissionStatistics
from millrace_broker.server import BrokerServer
from millrace_broker.testing import EmbeddedBroker

from .frame_calls import Frames, framing
from .replica_cluster import ReplicaCluster, append
from .waiting import STALL_S, eventually

_LONG_MS = 600_000
_MEMORY_BYTES = 400_000
_QUARTER = b"x" * (_MEMORY_BYTES // 4 - frames.REQUEST_HEAD_BYTES + frames.HEAD_BYTES)
"""Return the message of a request that takes a quarter of the memory."""


def _admission(broker: EmbeddedBroker) -> AdmissionStatistics:
    return broker.server.broker.statistics().admission


@contextlib.contextmanager
def _parked_fetches(
    calls: Any, broker: EmbeddedBroker, count: int, *, grpc: bool, topic: str, at_once: int = 100
) -> Iterator[list[Any]]:
    """Start fetches that wait, over one client's gRPC connection or a connection each.

    ``at_once`` are sent together.
    """
    request = calls.fetch_request({topic: {0: calls.offset(topic, -1).offset}}, max_wait_ms=_LONG_MS)
    parked: list[Any] = []
    with contextlib.ExitStack() as opened:
        while len(parked) < count:
            for _ in range(min(at_once, count - len(parked))):
                if grpc:
                    parked.append(calls.stub.Fetch.future(request))
                    opened.callback(parked[-1].cancel)
                else:
                    parked.append(opened.enter_context(Frames(broker)))
                    parked[-1].greet()
                    parked[-1].send("Fetch", request)
            eventually(lambda: _admission(broker).parked == len(parked))
        yield parked


@pytest.mark.parametrize(("count", "grpc"), [(600, True), (600, False), (4000, True)])
def test_a_produce_is_answered_beside_parked_fetches_of_the_same_client(
    tmp_path: Path, calls_to: Callable[[str], Any], count: int, grpc: bool
) -> None:
    with EmbeddedBroker(tmp_path / "data") as broker:
        calls = calls_to(broker.bootstrap_servers)
        calls.create("idle")
        calls.create("t")
        with _parked_fetches(calls, broker, count, grpc=grpc, topic="idle"):
            for offset in range(10):
                assert calls.produce("t", calls.batch(b"x")).base_offset == offset
            found = _admission(broker)
            assert (found.parked, found.requests, found.refused, found.evicted) == (count, 0, 0, 0)
            assert found.parked_bytes >= count * PARKED_CALL_BYTES
        eventually(lambda: _admission(broker).parked_bytes == 0)


@pytest.mark.parametrize("grpc", [True, False])
def test_full_parked_memory_answers_the_longest_parked_empty(
    tmp_path: Path, calls_to: Callable[[str], Any], grpc: bool
) -> None:
    room_for = 10
    size = (PARKED_CALL_BYTES + 200) * room_for
    with EmbeddedBroker(tmp_path / "data", purgatory_max_request_bytes=size) as broker:
        calls = calls_to(broker.bootstrap_servers)
        calls.create("t")
        request = calls.fetch_request({"t": {0: 0}}, max_wait_ms=_LONG_MS)
        with _parked_fetches(calls, broker, room_for, grpc=grpc, topic="t", at_once=1) as parked:
            late = []
            for longest in parked[:3]:
                late.append(calls.stub.Fetch.future(request))
                answer = longest.result(STALL_S) if grpc else pb.FetchResponse.FromString(longest.receive())
                result = answer.topics[0].partitions[0]
                assert (result.error.code, result.records) == (0, b"")
                assert not late[-1].done(), "a new call is never refused because of it"
            eventually(lambda: _admission(broker).parked == room_for)
            assert (_admission(broker).evicted, _admission(broker).refused) == (3, 0)
            assert calls.produce("t", calls.batch(b"x")).base_offset == 0
        eventually(lambda: _admission(broker).parked == 0)


@pytest.mark.parametrize("grpc", [True, False])
def test_parked_fetches_are_woken_by_a_produce(tmp_path: Path, calls_to: Callable[[str], Any], grpc: bool) -> None:
    with EmbeddedBroker(tmp_path / "data", queued_max_requests=5) as broker:
        calls = calls_to(broker.bootstrap_servers)
        calls.create("t")
        with _parked_fetches(calls, broker, 50, grpc=grpc, topic="t") as parked:
            calls.produce("t", calls.batch(b"x"))
            for each in parked:
                answer = each.result(STALL_S) if grpc else pb.FetchResponse.FromString(each.receive())
                assert answer.topics[0].partitions[0].records
        eventually(lambda: _admission(broker).parked_bytes == 0)


def test_heartbeats_and_operators_get_through_where_clients_fill_places_connections_and_memory(
    tmp_path: Path, calls_to: Callable[[str], Any]
) -> None:
    options = {
        "queued.max.requests": 4,
        "queued.max.request.bytes": _MEMORY_BYTES,
        "max.connections": 5,
        "group.initial.rebalance.delay.ms": 0,
    }
    with EmbeddedBroker(tmp_path / "data", options=options) as broker, contextlib.ExitStack() as opened:
        clients = [opened.enter_context(Frames(broker)) for _ in range(5)]
        for each in clients:
            each.greet()
        for each in clients[:4]:  # each has a place, and memory for nearly all of its message
            each.sock.sendall(each.written("Produce", _QUARTER)[:-1])
        eventually(lambda: _admission(broker).requests == 4)
        assert _admission(broker).bytes_in_use == _MEMORY_BYTES
        member = opened.enter_context(Frames(broker))
        member.greet()
        member.call("FindCoordinator", pb.FindCoordinatorRequest(key_type=pb.GROUP, keys=["g"]))
        join = pb.JoinGroupRequest(
            group_id="g",
            session_timeout_ms=10_000,
            rebalance_timeout_ms=10_000,
            protocol_type="consumer",
            protocols=[pb.JoinGroupRequest.Protocol(name="range")],
        )
        joined = pb.JoinGroupResponse.FromString(member.call("JoinGroup", join))
        join.member_id = joined.member_id
        joined = pb.JoinGroupResponse.FromString(member.call("JoinGroup", join))
        beat = pb.HeartbeatRequest(group_id="g", generation_id=joined.generation_id, member_id=joined.member_id)
        member.call("SyncGroup", pb.SyncGroupRequest(group_id="g", generation_id=1, member_id=joined.member_id))
        member.call("Heartbeat", beat)
        for transport in ("auto", "grpc"):
            with Admin({"bootstrap.servers": broker.bootstrap_servers, "transport": transport}) as admin:
                admin.create_topic(f"by-{transport}")
                assert f"by-{transport}" in [each.name for each in admin.list_topics()]
        assert _admission(broker).by_class["client"] == 4


def test_members_that_wait_for_others_to_join_take_no_places(tmp_path: Path, calls_to: Callable[[str], Any]) -> None:
    options = {
        "queued.max.requests": 2,
        "control.queued.max.requests": 2,
        "group.initial.rebalance.delay.ms": _LONG_MS,
        "group.max.session.timeout.ms": _LONG_MS,
    }
    with EmbeddedBroker(tmp_path / "data", options=options) as broker:
        calls = calls_to(broker.bootstrap_servers)
        calls.create("t")
        calls.call("FindCoordinator", pb.FindCoordinatorRequest(key_type=pb.GROUP, keys=["g"]))
        joins: list[Any] = []
        for _ in range(20):
            join = pb.JoinGroupRequest(
                group_id="g",
                session_timeout_ms=_LONG_MS,
                rebalance_timeout_ms=_LONG_MS,
                protocol_type="consumer",
                protocols=[pb.JoinGroupRequest.Protocol(name="range")],
            )
            join.member_id = calls.stub.JoinGroup(join).member_id
            joins.append(calls.stub.JoinGroup.future(join))
            eventually(lambda: _admission(broker).parked == len(joins))
        assert calls.produce("t", calls.batch(b"x")).base_offset == 0
        calls.create("another")
        assert (_admission(broker).requests, _admission(broker).refused) == (0, 0)
        assert not any(each.done() for each in joins)
        for each in joins:
            each.cancel()
        eventually(lambda: _admission(broker).parked_bytes == 0)


def test_appends_that_wait_for_replicas_take_no_places(tmp_path: Path, calls_to: Callable[[str], Any]) -> None:
    options = {"queued.max.requests": "2", "replica.lag.time.max.ms": str(_LONG_MS)}
    with ReplicaCluster(tmp_path, brokers=2, options=options) as cluster:
        cluster.create("t", (1, 2))
        cluster.settle("t")
        cluster.kill(2)
        calls = calls_to(f"127.0.0.1:{cluster.addresses[1]}")
        admission = cluster.broker(1).admission
        data = pb.ProduceRequest.PartitionData(records=calls.batch(b"x"))
        topics = [pb.ProduceRequest.TopicData(name="t", partitions=[data])]
        appends: list[Any] = []
        for _ in range(20):
            appends.append(calls.stub.Produce.future(pb.ProduceRequest(acks=-1, timeout_ms=_LONG_MS, topics=topics)))
            eventually(lambda: len(admission.parked) == len(appends))
        calls.produce("t", calls.batch(b"y"), acks=1)
        found = admission.statistics()
        assert (found.requests, found.refused) == (0, 0)
        assert not any(each.done() for each in appends)
        cluster.start(2)
        cluster.tell("t")
        for each in appends:
            assert not each.result(STALL_S).topics[0].partitions[0].HasField("error")
        eventually(lambda: admission.statistics().parked_bytes == 0)


@pytest.mark.parametrize("grpc", [True, False])
def test_calls_that_wait_for_memory_of_their_requests_are_not_refused_however_few_places_there_are(
    tmp_path: Path, calls_to: Callable[[str], Any], grpc: bool
) -> None:
    options = {"queued.max.requests": 5, "queued.max.request.bytes": _MEMORY_BYTES}
    with EmbeddedBroker(tmp_path / "data", options=options) as broker, contextlib.ExitStack() as opened:
        calls = calls_to(broker.bootstrap_servers)
        calls.create("t")
        with contextlib.ExitStack() as slow:
            for _ in range(4):  # each has a place, and memory for a message that it does not send completely
                each = slow.enter_context(Frames(broker))
                each.greet()
                each.sock.sendall(each.written("Produce", _QUARTER)[:-1])
            eventually(lambda: _admission(broker).requests == 4)
            request = calls.fetch_request({"t": {0: 0}}, max_wait_ms=0)
            waiting: list[Any] = []
            for number in range(10):
                if grpc:
                    waiting.append(calls.stub.Fetch.future(request))
                else:
                    waiting.append(opened.enter_context(Frames(broker)))
                    waiting[-1].greet()
                    waiting[-1].send("Fetch", request)
                eventually(lambda count=number + 1: _admission(broker).parked == count)  # type: ignore[misc]
            assert (_admission(broker).requests, _admission(broker).refused) == (4, 0)
        for each in waiting:
            answer = each.result(STALL_S) if grpc else pb.FetchResponse.FromString(each.receive())
            assert not answer.topics[0].partitions[0].HasField("error")
        found = _admission(broker)
        assert (found.refused, found.evicted) == (0, 0)
        eventually(lambda: (_admission(broker).parked_bytes, _admission(broker).bytes_in_use) == (0, 0))


def test_a_client_that_reads_no_answer_fills_no_memory_beyond_one_answer(
    tmp_path: Path, calls_to: Callable[[str], Any]
) -> None:
    with EmbeddedBroker(tmp_path / "data") as broker:
        calls = calls_to(broker.bootstrap_servers)
        calls.create("t")
        for _ in range(8):
            calls.produce("t", calls.batch(b"x" * 1_000_000))
        request = Frames.written("Fetch", calls.fetch_request({"t": {0: 0}}, max_bytes=4_000_000))
        with Frames(broker) as silent:
            silent.sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 65_536)
            silent.greet()
            silent.sock.settimeout(0.2)
            with contextlib.suppress(TimeoutError):  # it takes this much and no more
                for _ in range(10_000):
                    silent.sock.sendall(request * 100)
                pytest.fail("the broker reads requests without a limit")
            found = _admission(broker)
            assert found.bytes_in_use < 2 * 4_000_000
            (connection,) = framing(broker.server)._connections
            assert len(connection._rest) <= 256 * 1024
        eventually(lambda: _admission(broker).bytes_in_use == 0)


def test_unread_answers_do_not_delay_polls_of_idle_partitions(tmp_path: Path, calls_to: Callable[[str], Any]) -> None:
    # The answers exceed the buffers of a socket, which take up to 4 MiB on Linux.
    options = {"queued.max.request.bytes": 12_000_000, "fetch.max.bytes": 12_000_000}
    with EmbeddedBroker(tmp_path / "data", options=options) as broker, contextlib.ExitStack() as opened:
        calls = calls_to(broker.bootstrap_servers)
        calls.create("t")
        calls.create("idle")
        for _ in range(12):
            calls.produce("t", calls.batch(b"x" * 1_000_000))
        request = calls.fetch_request({"t": {0: 0}}, max_bytes=12_000_000, partition_max_bytes=12_000_000)
        silent = [_unread(opened, broker) for _ in range(3)]
        for each in silent:
            each.send("Fetch", request)
        eventually(lambda: _admission(broker).parked == 2)
        assert calls.fetch("idle", 0).records == b""
        assert calls.produce("t", calls.batch(b"x")).base_offset == 12
        eventually(lambda: _admission(broker).requests == 0)  # the first answer has been read from the log by then


def _unread(opened: contextlib.ExitStack, broker: EmbeddedBroker | BrokerServer) -> Frames:
    """Open a connection whose buffers hold little while the client does not read."""
    each = opened.enter_context(Frames(broker))
    each.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    each.greet()
    return each


def test_metrics_count_what_is_parked(tmp_path: Path, calls_to: Callable[[str], Any]) -> None:
    from prometheus_client.core import Metric

    from millrace_broker.metrics import metrics_of

    with EmbeddedBroker(tmp_path / "data") as broker:
        calls = calls_to(broker.bootstrap_servers)
        calls.create("t")
        with _parked_fetches(calls, broker, 3, grpc=False, topic="t"):
            found: dict[str, Metric] = {each.name: each for each in metrics_of(broker.server.broker.statistics())}
            assert found["millrace_parked_requests"].samples[0].value == 3
            assert found["millrace_parked_bytes"].samples[0].value >= 3 * PARKED_CALL_BYTES
            assert found["millrace_parked_requests_evicted"].samples[0].value == 0
            by_class = {each.labels["class"]: each.value for each in found["millrace_requests"].samples}
            assert by_class == {"client": 0, "control": 0, "broker": 0}


def test_a_greeting_of_a_broker_has_a_place_that_clients_cannot_take(tmp_path: Path) -> None:
    options = {"max.connections": 1, "control.max.connections": 1}
    with EmbeddedBroker(tmp_path / "data", options=options) as broker, contextlib.ExitStack() as opened:
        for _ in range(2):
            opened.enter_context(Frames(broker)).greet()
        hello = pb.HelloRequest(client_software_name="millrace-broker").SerializeToString()
        peer = opened.enter_context(Frames(broker))
        peer.sock.sendall(frames.hello_request(hello))
        peer.receive(frames.HELLO_ID)
        peer.call("Fetch", pb.FetchRequest(replica_id=-1))


def test_consumers_that_read_no_answer_do_not_stall_replication(tmp_path: Path) -> None:
    options = {
        "queued.max.request.bytes": "16000000",
        "fetch.max.bytes": "8000000",
        "replica.lag.time.max.ms": "30000",
    }
    with ReplicaCluster(tmp_path, options=options) as cluster, contextlib.ExitStack() as opened:
        cluster.create("t", (1, 2, 3), min_insync_replicas="3")
        for _ in range(10):
            assert not append(cluster, 1, "t", b"x" * 900_000).HasField("error")
        leader = cluster.servers[1]
        wanted = pb.FetchRequest.PartitionFetch(partition=0, partition_max_bytes=8_000_000, current_leader_epoch=-1)
        request = pb.FetchRequest(replica_id=-1, max_wait_ms=_LONG_MS, min_bytes=1, max_bytes=8_000_000)
        request.topics.add(name="t", partitions=[wanted])
        for _ in range(50):
            _unread(opened, leader).send("Fetch", request)
        # Two answers fill the memory for responses to clients, and the other consumers wait for it.
        eventually(lambda: leader.broker.statistics().admission.parked >= 40)
        for _ in range(20):
            assert not append(cluster, 1, "t", b"y" * 100_000).HasField("error"), "acks=all appends continue"
        assert cluster.isr("t") == {1, 2, 3}
        assert cluster.isr_changes == []
