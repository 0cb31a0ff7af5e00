"""Tests of the Kafka listener.

The tests cover versions, order, limits, and requests that no client sends.
"""

from __future__ import annotations

import dataclasses
import random
import struct
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from millrace.errors import DiskFullError, StorageError, UnsupportedVersionError
from millrace.kafka_protocol.calls.alter_user_scram_credentials import (
    AlterUserScramCredentialsRequest,
    ScramCredentialDeletion,
)
from millrace.kafka_protocol.calls.api_versions import ApiVersionsRequest
from millrace.kafka_protocol.calls.describe_log_dirs import DescribableLogDirTopic, DescribeLogDirsRequest
from millrace.kafka_protocol.calls.fetch import FetchPartition, FetchRequest, FetchTopic
from millrace.kafka_protocol.calls.metadata import MetadataRequest, MetadataRequestTopic
from millrace.kafka_protocol.calls.offset_for_leader_epoch import OffsetForLeaderEpochRequest
from millrace.kafka_protocol.calls.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from millrace.kafka_protocol.calls.table import ApiKey
from millrace.kafka_protocol.message import Message
from millrace.records import Record, build_rows_batch
from millrace_broker.metadata import ScramCredentials
from millrace_broker.testing import EmbeddedBroker

from .frame_calls import Frames
from .kafka_clients import create_topic
from .kafka_wire import KafkaWire, written
from .waiting import STALL_S, eventually

_METADATA = MetadataRequest(topics=())
_UNSUPPORTED_VERSION = 35


def _produce(topic: str, acks: int, *values: bytes) -> ProduceRequest:
    batch = bytes(build_rows_batch([Record(value=value, timestamp_ms=1) for value in values]))
    partitions = (PartitionProduceData(index=0, records=batch),)
    return ProduceRequest(
        acks=acks, timeout_ms=1000, topic_data=(TopicProduceData(name=topic, partition_data=partitions),)
    )


def _limits(broker: EmbeddedBroker) -> Any:
    return broker.server.broker.statistics().admission


def _closings(caplog: pytest.LogCaptureFixture, wire: KafkaWire) -> list[str]:
    """Return what the broker logged about a connection that it closed."""
    return [each.message for each in caplog.records if f":{wire.port} is closed" in each.message]


def test_every_advertised_version_is_one_of_the_broker(module_broker: EmbeddedBroker) -> None:
    with KafkaWire(module_broker) as wire:
        answer = wire.call(ApiVersionsRequest(client_software_name="x", client_software_version="1"), 4)
    found = {each.api_key: (each.min_version, each.max_version) for each in answer.api_keys}
    assert answer.error_code == 0
    assert found[ApiKey.PRODUCE] == (0, 13), "from 0, which librdkafka needs"
    assert found[ApiKey.API_VERSIONS] == (0, 4)
    assert found[ApiKey.SASL_HANDSHAKE] == (1, 1)


def test_api_versions_of_an_unknown_version_is_answered_in_version_0(module_broker: EmbeddedBroker) -> None:
    with KafkaWire(module_broker) as wire:
        request = bytearray(written(ApiVersionsRequest(client_software_name="x", client_software_version="1"), 4, 9))
        request[6:8] = struct.pack(">h", 77)
        wire.sock.sendall(request)
        correlation_id, answer = wire.receive(ApiKey.API_VERSIONS, 0)
        assert (correlation_id, answer.error_code) == (9, _UNSUPPORTED_VERSION)
        assert [(each.api_key, each.max_version) for each in answer.api_keys] == [(ApiKey.API_VERSIONS, 4)]
        assert wire.call(ApiVersionsRequest(), 0).error_code == 0, "the connection stays open"


@pytest.mark.parametrize(("name", "version"), [("has spaces", "1"), ("", "1"), ("x", "-1")])
def test_a_client_without_a_proper_name_is_refused_as_by_kafka(
    module_broker: EmbeddedBroker, name: str, version: str
) -> None:
    with KafkaWire(module_broker) as wire:
        answer = wire.call(ApiVersionsRequest(client_software_name=name, client_software_version=version), 3)
        assert answer.error_code == 42


def test_an_error_of_millrace_alone_has_kafkas_code(
    module_broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    def alter(credentials: ScramCredentials, user: str, changes: object) -> None:
        raise DiskFullError(f"the credential of {user} is not stored: free space")

    monkeypatch.setattr(ScramCredentials, "alter", alter)
    deletion = ScramCredentialDeletion(name="alice", mechanism=1)
    with KafkaWire(module_broker) as wire:
        answer = wire.call(AlterUserScramCredentialsRequest(deletions=(deletion,), upsertions=()), 0)
    assert [(each.user, each.error_code, each.error_message) for each in answer.results] == [
        ("alice", StorageError.code, "the credential of alice is not stored: free space")
    ]


def test_requests_that_come_together_are_answered_in_their_order(module_broker: EmbeddedBroker, topic: str) -> None:
    create_topic(module_broker, topic)
    requests: list[tuple[Message, int]] = [
        (_METADATA, 9),
        (_produce(topic, 1, b"x"), 9),
        (ApiVersionsRequest(), 0),
        (_produce(topic, -1, b"y"), 3),
    ]
    with KafkaWire(module_broker) as wire:
        wire.sock.sendall(b"".join(written(*requests[number % 4], correlation_id=number) for number in range(200)))
        offsets = []
        for number in range(200):
            request, version = requests[number % 4]
            correlation_id, answer = wire.receive(request.API_KEY, version)
            assert correlation_id == number
            if isinstance(request, ProduceRequest):
                offsets.append(answer.responses[0].partition_responses[0].base_offset)
        assert offsets == list(range(100))


def test_a_producer_without_acks_gets_no_answer(module_broker: EmbeddedBroker, topic: str) -> None:
    create_topic(module_broker, topic)
    with KafkaWire(module_broker) as wire:
        for number in range(3):
            wire.send(_produce(topic, 0, b"x"), 9, number)
        answer = wire.call(_produce(topic, 1, b"y"), 9)
        assert answer.responses[0].partition_responses[0].base_offset == 3


def test_a_producer_without_acks_loses_its_connection_if_its_records_are_refused(
    module_broker: EmbeddedBroker, topic: str
) -> None:
    """As in Kafka. A client whose partition has another leader now would otherwise send records to nowhere."""
    with KafkaWire(module_broker) as wire:
        wire.send(_produce("no-such-topic", 0, b"x"), 9)
        assert wire.received == b""
    with KafkaWire(module_broker) as wire:
        wire.send(dataclasses.replace(_produce(topic, 0, b"x"), topic_data=()), 9)
        assert wire.call(_METADATA, 1).brokers, "a request without records is no failure"


def test_a_request_may_come_byte_by_byte(module_broker: EmbeddedBroker) -> None:
    with KafkaWire(module_broker) as wire:
        for byte in written(_METADATA, 12, 5):
            wire.sock.sendall(bytes([byte]))
        assert wire.receive(ApiKey.METADATA, 12)[0] == 5


def test_a_version_that_the_broker_lacks_ends_the_connection(
    module_broker: EmbeddedBroker, caplog: pytest.LogCaptureFixture
) -> None:
    with KafkaWire(module_broker) as wire:
        request = bytearray(written(_METADATA, 12))
        request[6:8] = struct.pack(">h", 99)
        wire.sock.sendall(request)
        assert wire.received == b""
    (line,) = _closings(caplog, wire)
    assert "Metadata of version 99: this broker has 0 to 13" in line


def test_a_request_that_cannot_be_read_ends_the_connection_and_names_the_field(
    module_broker: EmbeddedBroker, caplog: pytest.LogCaptureFixture
) -> None:
    with KafkaWire(module_broker) as wire:
        request = MetadataRequest(topics=(MetadataRequestTopic(name="some-topic"),))
        data = written(request, 1)[4:-3]
        wire.sock.sendall(struct.pack(">i", len(data)) + data)
        assert wire.received == b""
    (line,) = _closings(caplog, wire)
    assert "MetadataRequest of version 1, field topics[0].name" in line


def test_too_large_a_request_ends_the_connection_before_memory_is_taken(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with (
        EmbeddedBroker(tmp_path / "data", socket_request_max_bytes=200_000, message_max_bytes=100_000) as broker,
        KafkaWire(broker) as wire,
    ):
        wire.sock.sendall(struct.pack(">ihhi", 200_001, ApiKey.PRODUCE, 9, 0))
        assert wire.received == b""
        assert _limits(broker).bytes_in_use == 0
    (line,) = _closings(caplog, wire)
    assert "socket.request.max.bytes" in line


def test_a_full_broker_lets_kafkas_clients_wait_and_tells_those_of_millrace(tmp_path: Path) -> None:
    with (
        EmbeddedBroker(tmp_path / "data", queued_max_requests=1) as broker,
        Frames(broker) as slow,
        KafkaWire(broker) as first,
        KafkaWire(broker) as second,
    ):
        create_topic(broker, "t")
        slow.greet()
        slow.sock.sendall(slow.written("Produce", b"x" * 1000)[:-1])  # the request is being received, and has the place
        eventually(lambda: _limits(broker).requests == 1)
        before = _limits(broker).delayed
        for wire in (first, second):
            wire.send(_produce("t", 1, b"x"), 9)
        eventually(lambda: _limits(broker).delayed == before + 2)
        assert _limits(broker).requests == 1
        slow.close()
        offsets = set()
        for wire in (first, second):
            _, answer = wire.receive(ApiKey.PRODUCE, 9)
            offsets.add(answer.responses[0].partition_responses[0].base_offset)
        assert offsets == {0, 1}
        eventually(lambda: _limits(broker).requests == 0)


def test_requests_behind_one_that_waits_for_a_place_are_answered_too(tmp_path: Path) -> None:
    """Their handlers do not wait, so that each is answered before the next one is read."""
    with (
        EmbeddedBroker(tmp_path / "data", queued_max_requests=1) as broker,
        Frames(broker) as slow,
        KafkaWire(broker, STALL_S) as wire,
    ):
        slow.greet()
        slow.sock.sendall(slow.written("Produce", b"x" * 1000)[:-1])
        eventually(lambda: _limits(broker).requests == 1)
        before = _limits(broker).delayed
        request = OffsetForLeaderEpochRequest(topics=())
        wire.sock.sendall(written(request, 4, 1) + written(request, 4, 2) + written(request, 4, 3))
        eventually(lambda: _limits(broker).delayed == before + 1)
        slow.close()
        assert [wire.receive(request.API_KEY, 4)[0] for _ in range(3)] == [1, 2, 3]
        eventually(lambda: _limits(broker).requests == 0)


def test_a_client_that_leaves_while_it_waits_holds_nothing(tmp_path: Path) -> None:
    with EmbeddedBroker(tmp_path / "data", queued_max_requests=1) as broker, Frames(broker) as slow:
        create_topic(broker, "t")
        slow.greet()
        slow.sock.sendall(slow.written("Produce", b"x" * 1000)[:-1])
        eventually(lambda: _limits(broker).requests == 1)
        before = _limits(broker)
        with KafkaWire(broker) as leaving, KafkaWire(broker) as staying:
            leaving.send(_produce("t", 1, b"x"), 9)
            eventually(lambda: _limits(broker).delayed == before.delayed + 1)
            staying.send(_produce("t", 1, b"x"), 9)
            eventually(lambda: _limits(broker).delayed == before.delayed + 2)
            leaving.sock.close()
            slow.close()
            assert staying.receive(ApiKey.PRODUCE, 9)[1].responses[0].partition_responses[0].error_code == 0
        eventually(lambda: _limits(broker).connections == 0)
        assert _limits(broker).requests == 0


def test_an_idle_connection_is_closed_without_a_word(tmp_path: Path) -> None:
    with EmbeddedBroker(tmp_path / "data", connections_max_idle_ms=1000) as broker, KafkaWire(broker) as wire:
        wire.call(ApiVersionsRequest(), 0)
        assert wire.received == b""


def test_damaged_requests_affect_no_other_connection(module_broker: EmbeddedBroker, topic: str, seed: int) -> None:
    create_topic(module_broker, topic)
    chance = random.Random(seed)
    whole = [
        written(_METADATA, 12),
        written(_produce(topic, 1, b"x" * 100), 9),
        written(ApiVersionsRequest(client_software_name="x", client_software_version="1"), 3),
    ]
    with KafkaWire(module_broker) as good:
        for _ in range(100):
            data = bytearray(chance.choice(whole))
            for _ in range(chance.randrange(1, 4)):
                data[chance.randrange(4, len(data))] = chance.randrange(256)
            with KafkaWire(module_broker) as wire:
                wire.sock.sendall(data[: chance.randrange(1, len(data) + 1)])
        assert good.call(_METADATA, 12).brokers
    eventually(lambda: _limits(module_broker).requests == 0)
    eventually(lambda: _limits(module_broker).bytes_in_use == 0)


def test_a_broker_may_refuse_the_clients_of_kafka(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with EmbeddedBroker(tmp_path / "data", kafka_clients_enable=False) as broker:
        with KafkaWire(broker) as wire:
            wire.send(ApiVersionsRequest(), 0)
            assert wire.received == b""
        with Frames(broker) as own:
            own.greet()
            own.call("ApiVersions", b"")
            own.sock.sendall(written(ApiVersionsRequest(), 0))
            with pytest.raises(UnsupportedVersionError, match=r"kafka\.clients\.enable=false"):
                own.receive()
            assert own.is_closed
    (line,) = _closings(caplog, wire)
    assert "kafka.clients.enable=false" in line


def test_a_large_request_behind_one_that_waits_is_received_afterwards(
    module_broker: EmbeddedBroker, topic: str
) -> None:
    create_topic(module_broker, topic)
    waiting = FetchRequest(
        max_wait_ms=200,
        min_bytes=1,
        max_bytes=1000,
        topics=(
            FetchTopic(
                topic=topic, partitions=(FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1000),)
            ),
        ),
    )
    large = _produce(topic, -1, b"x" * 900_000)
    with KafkaWire(module_broker, STALL_S) as wire:
        wire.sock.sendall(written(waiting, 11, 1) + written(large, 9, 2) + written(large, 9, 3))
        assert wire.receive(ApiKey.FETCH, 11)[0] == 1
        for correlation_id in (2, 3):
            received, answer = wire.receive(ApiKey.PRODUCE, 9)
            assert received == correlation_id
            assert answer.responses[0].partition_responses[0].error_code == 0


def test_log_directories_are_described_with_the_sizes_of_partitions(module_broker: EmbeddedBroker, topic: str) -> None:
    create_topic(module_broker, topic)
    with KafkaWire(module_broker) as wire:
        wire.call(_produce(topic, 1, b"x" * 1000), 9)
        for wanted in (None, (DescribableLogDirTopic(topic=topic, partitions=(0,)),)):
            (directory,) = wire.call(DescribeLogDirsRequest(topics=wanted), 4).results
            assert directory.log_dir == module_broker.server.broker.config.log_directories[0]
            assert directory.total_bytes > directory.usable_bytes > 0
            sizes = {each.name: each.partitions[0].partition_size for each in directory.topics}
            assert sizes[topic] > 1000
        assert set(sizes) == {topic}


def test_log_directories_are_described_beside_other_calls(module_broker: EmbeddedBroker) -> None:
    logs = module_broker.server.broker.logs
    with KafkaWire(module_broker) as wire, KafkaWire(module_broker) as other, ThreadPoolExecutor(1) as thread:
        with logs._hosted.lock:  # as a log holds it that moves to another directory
            described = thread.submit(wire.call, DescribeLogDirsRequest(topics=None), 4)
            for _ in range(5):
                assert other.call(_METADATA, 9).brokers
            assert not described.done()
        assert described.result(STALL_S).results


def test_a_log_directory_that_is_gone_has_an_error_of_its_own(tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    with (
        EmbeddedBroker(first, options={"log.dirs": f"{first},{second}"}) as broker,
        KafkaWire(broker) as wire,
    ):
        second.rename(tmp_path / "away")
        found = wire.call(DescribeLogDirsRequest(topics=None), 4).results
        codes = {Path(each.log_dir): each.error_code for each in found}
        assert codes == {first: 0, second: StorageError.code}
        (tmp_path / "away").rename(second)
