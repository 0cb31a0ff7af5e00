"""Tests of bad input at the listeners.

The broker limits its cost and names it in the log, and serves other clients undisturbed.
"""

from __future__ import annotations

import asyncio
import json
import logging
import socket
import struct
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from millrace.clients import Admin
from millrace.errors import (
    InvalidReplicaAssignmentError,
    InvalidReplicationFactorError,
    InvalidRequestError,
    InvalidTopicError,
)
from millrace.kafka_protocol.calls import (
    alter_configs,
    alter_partition_reassignments,
    describe_configs,
    incremental_alter_configs,
)
from millrace.kafka_protocol.calls.api_versions import ApiVersionsRequest
from millrace.kafka_protocol.calls.fetch import FetchPartition, FetchRequest, FetchTopic
from millrace.kafka_protocol.calls.incremental_alter_configs import IncrementalAlterConfigsRequest
from millrace.kafka_protocol.calls.metadata import MetadataRequest, MetadataRequestTopic
from millrace.kafka_protocol.calls.offset_for_leader_epoch import (
    OffsetForLeaderEpochRequest,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)
from millrace.kafka_protocol.calls.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from millrace.kafka_protocol.calls.table import ApiKey
from millrace.records import Compression, Record, build_rows_batch
from millrace_broker.kafka_api.call import ELEMENTS_MAX
from millrace_broker.kafka_api.fetch_sessions import SESSIONS_MAX
from millrace_broker.runtime.turns import ITEMS, Turns
from millrace_broker.testing import EmbeddedBroker

from .kafka_clients import create_topic
from .kafka_wire import KafkaWire, written
from .waiting import STALL_S, eventually

_INVALID_RECORD = 87
_MB = 1_000_000
_SET, _APPEND = 0, 2


def _limits(broker: EmbeddedBroker) -> Any:
    return broker.server.broker.statistics().admission


def _closings(caplog: pytest.LogCaptureFixture, wire: KafkaWire) -> list[str]:
    """Return what the broker logged about a connection that it closed."""
    return [each.message for each in caplog.records if f":{wire.port} is closed" in each.message]


def _produce(broker: EmbeddedBroker, topic: str, batch: bytes) -> Any:
    """Send a batch, and return the partition's answer."""
    data = TopicProduceData(name=topic, partition_data=(PartitionProduceData(index=0, records=batch),))
    with KafkaWire(broker) as wire:
        answer = wire.call(ProduceRequest(acks=-1, timeout_ms=30_000, topic_data=(data,)), 9)
    return answer.responses[0].partition_responses[0]


def _fetch(topic: str, *, max_bytes: int = 100 * _MB, with_session: bool = False) -> FetchRequest:
    wanted = FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=max_bytes)
    return FetchRequest(
        max_wait_ms=0,
        min_bytes=0,
        max_bytes=max_bytes,
        session_epoch=0 if with_session else -1,
        topics=(FetchTopic(topic=topic, partitions=(wanted,)),),
    )


@pytest.mark.parametrize("key", [7, 52, 999])
def test_an_unknown_call_closes_its_connection_with_one_line_in_the_log(
    module_broker: EmbeddedBroker, key: int, caplog: pytest.LogCaptureFixture
) -> None:
    with KafkaWire(module_broker) as other, KafkaWire(module_broker) as wire:
        wire.call(ApiVersionsRequest(), 0)
        request = bytearray(written(ApiVersionsRequest(), 0))
        request[4:6] = struct.pack(">h", key)
        wire.sock.sendall(request)
        assert wire.received == b""
        assert other.call(ApiVersionsRequest(), 0).error_code == 0
    (line,) = _closings(caplog, wire)
    assert f"API key {key} is no call" in line


@pytest.mark.parametrize(
    ("version", "topics"),
    [
        (1, struct.pack(">i", 2**31 - 1)),
        (1, struct.pack(">i", -2)),
        (1, struct.pack(">ih", 1, 2**15 - 1)),
        (9, b"\xff\xff\xff\xff\x0f"),
        (9, b"\x02\xff\xff\xff\xff\x0f"),
        (9, b"\xff" * 20),
    ],
)
def test_lengths_beyond_the_request_close_its_connection_and_name_the_field(
    module_broker: EmbeddedBroker, version: int, topics: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    """Counts and lengths take no memory before the bytes that they count are there."""
    with KafkaWire(module_broker) as other, KafkaWire(module_broker) as wire:
        whole = written(MetadataRequest(topics=()), version)
        head_bytes = len(whole) - len(MetadataRequest(topics=()).encode(version))
        content = whole[4:head_bytes] + topics
        wire.sock.sendall(struct.pack(">i", len(content)) + content)
        assert wire.received == b""
        assert other.call(MetadataRequest(topics=()), 9).brokers
    (line,) = _closings(caplog, wire)
    assert f"MetadataRequest of version {version}, field topics" in line


@pytest.mark.parametrize("part_bytes", [2, 6, 14, 40])
def test_a_client_that_leaves_within_a_request_is_named_in_the_log(
    module_broker: EmbeddedBroker, part_bytes: int, caplog: pytest.LogCaptureFixture
) -> None:
    request = written(MetadataRequest(topics=()), 9, client_id="x" * 100)
    with caplog.at_level(logging.INFO), KafkaWire(module_broker) as wire:
        wire.sock.sendall(request[:part_bytes])
        wire.sock.close()
        eventually(lambda: f":{wire.port} has ended within a request" in caplog.text)


def _epochs(partitions: int) -> OffsetForLeaderEpochRequest:
    asked = OffsetForLeaderPartition(partition=0, current_leader_epoch=-1, leader_epoch=0)
    return OffsetForLeaderEpochRequest(
        topics=(OffsetForLeaderTopic(topic="unknown", partitions=(asked,) * partitions),)
    )


def test_a_request_for_too_many_partitions_closes_its_connection_and_names_the_remedy(
    module_broker: EmbeddedBroker, caplog: pytest.LogCaptureFixture
) -> None:
    """The limit holds before the partitions take memory."""
    with KafkaWire(module_broker) as wire, KafkaWire(module_broker) as other:
        wire.send(_epochs(ELEMENTS_MAX), 4)
        assert wire.received == b""
        (line,) = _closings(caplog, wire)
        assert "OffsetForLeaderEpochRequest of version 4, field topics[0].partitions" in line
        assert f"more than {ELEMENTS_MAX} elements in one message: send several smaller ones" in line
        assert other.call(_epochs(10), 4).topics[0].partitions[9].error_code == 3


def test_a_request_for_many_partitions_is_answered_in_turns_with_other_requests(
    module_broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The turns are counted in the event loop, because the number of other answers depends on their client's speed."""
    iterations = 0
    looked_at_in = set[int]()
    is_over = threading.Event()

    def count_iteration(loop: asyncio.AbstractEventLoop) -> None:
        nonlocal iterations
        iterations += 1
        if not is_over.is_set():
            loop.call_soon(count_iteration, loop)

    class WatchedTurns(Turns):
        def __init__(self) -> None:
            super().__init__()
            count_iteration(asyncio.get_running_loop())

        async def next(self) -> None:
            await super().next()
            looked_at_in.add(iterations)

    monkeypatch.setattr("millrace_broker.api.offset_for_leader_epoch.Turns", WatchedTurns)
    with KafkaWire(module_broker) as wire, KafkaWire(module_broker) as other, ThreadPoolExecutor(1) as waiter:
        wire.send(_epochs(50_000), 4)
        answer = waiter.submit(wire.receive, ApiKey.OFFSET_FOR_LEADER_EPOCH, 4)
        try:
            while not answer.done():
                assert other.call(ApiVersionsRequest(), 0).error_code == 0
        finally:
            is_over.set()
    assert len(answer.result()[1].topics[0].partitions) == 50_000
    assert len(looked_at_in) > 50_000 // ITEMS > 50


def test_bytes_of_kafka_on_the_grpc_port_affect_no_other_client(module_broker: EmbeddedBroker) -> None:
    host, _, port = module_broker.grpc_address.rpartition(":")
    options = {"bootstrap.servers": module_broker.grpc_address, "transport": "grpc"}
    with Admin(options) as admin:
        before = admin.describe_cluster()
        with socket.create_connection((host, int(port)), STALL_S) as sock:
            sock.sendall(written(MetadataRequest(topics=(MetadataRequestTopic(name="x" * 1000),)), 9))
            received = b""
            while part := sock.recv(65536):  # gRPC's goodbye, and no answer of Kafka
                received += part
        assert b"x" * 10 not in received
        assert admin.describe_cluster() == before


def test_thousands_of_fetch_sessions_are_bounded_and_later_clients_fetch_without_one(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    count = SESSIONS_MAX + 500
    with EmbeddedBroker(tmp_path / "data") as broker, KafkaWire(broker, STALL_S) as wire:
        create_topic(broker, "t", retention_ms="-1")
        _produce(broker, "t", build_rows_batch([Record(value=b"x", timestamp_ms=1)]))
        request = written(_fetch("t", with_session=True), 12)
        found = set()
        for first in range(0, count, 100):
            wire.sock.sendall(request * 100)
            for number in range(first, first + 100):
                answer = wire.receive(ApiKey.FETCH, 12)[1]
                assert answer.responses[0].partitions[0].records, number
                found.add(answer.session_id)
        assert len(found - {0}) == SESSIONS_MAX
        assert 0 in found
    (line,) = [each.message for each in caplog.records if "fetch sessions are in use" in each.message]
    assert f"{SESSIONS_MAX} fetch sessions are in use" in line


def test_a_client_that_never_reads_holds_one_answer_and_is_disconnected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    from millrace_broker.listeners import connection as connections

    monkeypatch.setitem(connections.LIMITS_S, connections.State.SENDING, 0.5)
    caplog.set_level(logging.INFO)
    with (
        EmbeddedBroker(tmp_path / "data", message_max_bytes=25 * _MB) as broker,
        KafkaWire(broker) as wire,
        KafkaWire(broker) as other,
    ):
        create_topic(broker, "t", retention_ms="-1")
        assert not _produce(broker, "t", build_rows_batch([Record(value=bytes(20 * _MB), timestamp_ms=1)])).error_code
        wire.sock.sendall(written(_fetch("t"), 12) * 50)
        eventually(lambda: _limits(broker).bytes_in_use > 10 * _MB)
        assert _limits(broker).bytes_in_use < 30 * _MB, "one answer at a time"
        assert other.call(ApiVersionsRequest(), 0).error_code == 0
        eventually(lambda: bool(_closings(caplog, wire)))
        eventually(lambda: _limits(broker).bytes_in_use == 0)
    (line,) = _closings(caplog, wire)
    assert "sending took too long" in line


def test_a_client_that_pipelines_without_end_is_not_read_until_it_reads(tmp_path: Path) -> None:
    """Check that received requests are answered in order later, and that the others stay with the client."""
    request = written(_fetch("t"), 12, client_id="x" * 4000)
    with (
        EmbeddedBroker(tmp_path / "data") as broker,
        KafkaWire(broker, STALL_S) as wire,
        KafkaWire(broker) as other,
    ):
        create_topic(broker, "t", retention_ms="-1")
        _produce(broker, "t", build_rows_batch([Record(value=bytes(20_000), timestamp_ms=1)]))
        wire.sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 50_000)
        wire.sock.settimeout(0.5)
        sent_bytes = 0
        stream = request * 100
        try:
            while True:
                sent_bytes += wire.sock.send(stream[sent_bytes % len(request) :])
                assert sent_bytes < 100 * _MB, "the broker reads without end"
        except TimeoutError:
            pass  # the broker has read nothing for half a second
        assert _limits(broker).bytes_in_use < _MB
        assert other.call(ApiVersionsRequest(), 0).error_code == 0
        wire.sock.settimeout(STALL_S)
        for _ in range(sent_bytes // len(request)):
            answer = wire.receive(ApiKey.FETCH, 12)[1]
            assert len(answer.responses[0].partitions[0].records) > 20_000


@pytest.mark.parametrize("compression", [Compression.GZIP, Compression.SNAPPY, Compression.LZ4, Compression.ZSTD])
@pytest.mark.parametrize("is_typed", [False, True])
def test_a_decompression_bomb_is_refused_at_the_limit(
    module_broker: EmbeddedBroker,
    admin: Admin,
    topic: str,
    compression: Compression,
    is_typed: bool,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The limit is 256 MiB, and batches above 16 MiB are large; here both are 1 MB. The log names the client."""
    for limit in ("_LARGE_BYTES", "_DECOMPRESSED_BYTES_MAX"):
        monkeypatch.setattr(f"millrace_broker.api.common.record_checks.{limit}", _MB)
    if is_typed:
        admin.create_topic(topic, partitions=1, schema="text STRING", configs={"kafka.value.format": "json"})
    else:
        admin.create_topic(topic, partitions=1)
    value = json.dumps({"text": "x" * 3 * _MB}).encode()
    bomb = build_rows_batch([Record(value=value, timestamp_ms=1)], compression=compression)
    assert len(bomb) < _MB
    answer = _produce(module_broker, topic, bomb)
    assert (answer.error_code, answer.base_offset) == (_INVALID_RECORD, -1)
    assert "decompressed" in answer.error_message
    (line,) = [each.message for each in caplog.records if "is refused" in each.message]
    assert "client id 'wire'" in line
    assert line.endswith(f"a batch for {topic}-0 is refused: {answer.error_message}")
    small = build_rows_batch([Record(value=b'{"text":"x"}', timestamp_ms=1)], compression=compression)
    assert _produce(module_broker, topic, small).base_offset == 0


@pytest.mark.parametrize("compression", [Compression.GZIP, Compression.SNAPPY, Compression.LZ4, Compression.ZSTD])
def test_batches_that_are_large_after_decompression_do_not_delay_others(
    module_broker: EmbeddedBroker,
    topic: str,
    compression: Compression,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A large batch waits in a thread for decoding, while others are appended and read."""
    monkeypatch.setattr("millrace_broker.api.common.record_checks._LARGE_BYTES", _MB)
    caplog.set_level(logging.INFO)
    create_topic(module_broker, topic)
    large = build_rows_batch([Record(value=bytes(2 * _MB), timestamp_ms=1)], compression=compression)
    small = build_rows_batch([Record(value=b"small", timestamp_ms=1)], compression=compression)
    go_on = threading.Event()
    decoding = module_broker.server.broker.executors._decoding
    for _ in range(decoding._max_workers):
        decoding.submit(go_on.wait)
    try:
        with ThreadPoolExecutor(8) as clients:
            answers = [clients.submit(_produce, module_broker, topic, large) for _ in range(8)]
            eventually(lambda: caplog.text.count("it waits for a thread for decoding") == 8)
            assert _produce(module_broker, topic, small).base_offset == 0
            with KafkaWire(module_broker) as wire:
                answer = wire.call(_fetch(topic), 12)
            assert bytes(answer.responses[0].partitions[0].records).endswith(small[-10:])
            assert not any(each.done() for each in answers)
            go_on.set()
            assert {each.result(STALL_S).base_offset for each in answers} == set(range(1, 9))
    finally:
        go_on.set()


def test_a_decompression_bomb_above_the_real_limit_is_refused(
    module_broker: EmbeddedBroker, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    create_topic(module_broker, topic)
    value = bytes(64 * _MB)
    bomb = build_rows_batch([Record(value=value, timestamp_ms=1)] * 5, compression=Compression.ZSTD)
    answer = _produce(module_broker, topic, bomb)
    assert answer.error_code == _INVALID_RECORD
    assert "zstd body is larger than 268435456 bytes decompressed" in answer.error_message
    assert "is refused" in caplog.text


def _option_change(name: str, operation: int, kind: int = 2) -> IncrementalAlterConfigsRequest:
    option = incremental_alter_configs.AlterableConfig(
        name="cleanup.policy", config_operation=operation, value="compact"
    )
    resource = incremental_alter_configs.AlterConfigsResource(resource_type=kind, resource_name=name, configs=(option,))
    return IncrementalAlterConfigsRequest(resources=(resource,), validate_only=False)


@pytest.mark.parametrize("kind", [0, 1, 3, 5, 64])
def test_options_of_a_resource_of_an_unknown_type_are_refused_and_change_no_topic(
    module_broker: EmbeddedBroker, topic: str, kind: int
) -> None:
    create_topic(module_broker, topic)
    replaced = alter_configs.AlterConfigsResource(
        resource_type=kind,
        resource_name=topic,
        configs=(alter_configs.AlterableConfig(name="cleanup.policy", value="compact"),),
    )
    with KafkaWire(module_broker) as wire:
        for request in (
            alter_configs.AlterConfigsRequest(resources=(replaced,), validate_only=False),
            _option_change(topic, _SET, kind),
        ):
            (answer,) = wire.call(request, 1).responses
            assert answer.error_code == InvalidRequestError.code
            assert f"not to type {kind}" in answer.error_message
    assert not module_broker.server.broker.catalog.topics[topic].overrides


@pytest.mark.parametrize("name", ["a b", "..", "x" * 250])
@pytest.mark.parametrize("may_create", [False, True])
def test_a_name_that_no_topic_can_have_gets_an_error_of_its_own(
    module_broker: EmbeddedBroker, name: str, may_create: bool
) -> None:
    """Clients retry after the error of an unknown topic until their time-out."""
    with KafkaWire(module_broker) as wire:
        wanted = MetadataRequest(topics=(MetadataRequestTopic(name=name),), allow_auto_topic_creation=may_create)
        (described,) = wire.call(wanted, 9).topics
        resource = describe_configs.DescribeConfigsResource(
            resource_type=2, resource_name=name, configuration_keys=None
        )
        (options,) = wire.call(describe_configs.DescribeConfigsRequest(resources=(resource,)), 4).results
        (altered, appended) = (
            wire.call(_option_change(name, operation), 1).responses[0] for operation in (_SET, _APPEND)
        )
    codes = {each.error_code for each in (described, options, altered, appended)}
    assert codes == {InvalidTopicError.code}


def test_a_reassignment_that_may_not_change_the_replication_factor_is_refused(
    module_broker: EmbeddedBroker, topic: str
) -> None:
    create_topic(module_broker, topic)
    moved = alter_partition_reassignments.ReassignableTopic(
        name=topic,
        partitions=(alter_partition_reassignments.ReassignablePartition(partition_index=0, replicas=(0, 1)),),
    )
    codes = []
    with KafkaWire(module_broker) as wire:
        for allowed in (False, True):
            request = alter_partition_reassignments.AlterPartitionReassignmentsRequest(
                timeout_ms=1000, allow_replication_factor_change=allowed, topics=(moved,)
            )
            answer = wire.call(request, 1)
            assert answer.allow_replication_factor_change is allowed
            codes.append(answer.responses[0].partitions[0].error_code)
    assert codes == [InvalidReplicationFactorError.code, InvalidReplicaAssignmentError.code], "there is no broker 1"
