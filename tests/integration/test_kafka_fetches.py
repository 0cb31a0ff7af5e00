"""Tests of Fetch by the protocol of Kafka: waits, and partitions that cannot be read now."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from millrace.errors import ThrottledError
from millrace.kafka_protocol.calls.fetch import FetchPartition, FetchRequest, FetchTopic, ForgottenTopic
from millrace.kafka_protocol.calls.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from millrace.records import Record, build_rows_batch
from millrace_broker.log.read_threads import LogReads
from millrace_broker.testing import EmbeddedBroker

from .kafka_clients import create_topic
from .kafka_wire import KafkaWire

_VERSION = 12
_NEVER_MS = 1_000_000


@pytest.fixture
def wire(module_broker: EmbeddedBroker, topic: str) -> Iterator[KafkaWire]:
    create_topic(module_broker, topic)
    with KafkaWire(module_broker) as opened:
        yield opened


def _produce(wire: KafkaWire, topic: str) -> None:
    batch = bytes(build_rows_batch([Record(value=b"x", timestamp_ms=1)]))
    partitions = (PartitionProduceData(index=0, records=batch),)
    data = (TopicProduceData(name=topic, partition_data=partitions),)
    answer = wire.call(ProduceRequest(acks=-1, timeout_ms=1000, topic_data=data), 9)
    assert answer.responses[0].partition_responses[0].error_code == 0


def _fetch(*topics: str, max_wait_ms: int = 0, **fields: Any) -> FetchRequest:
    partitions = (FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1000),)
    return FetchRequest(
        max_wait_ms=max_wait_ms,
        min_bytes=1,
        max_bytes=10_000,
        topics=tuple(FetchTopic(topic=each, partitions=partitions) for each in topics),
        **fields,
    )


def _session(wire: KafkaWire, topic: str) -> int:
    """Begin a session of the topic, and return its id."""
    session_id: int = wire.call(_fetch(topic, session_epoch=0), _VERSION).session_id
    assert session_id
    return session_id


def test_the_last_request_of_a_session_does_not_wait(wire: KafkaWire, topic: str) -> None:
    session_id = _session(wire, topic)
    answer = wire.call(_fetch(max_wait_ms=_NEVER_MS, session_id=session_id, session_epoch=-1), _VERSION)
    assert (answer.error_code, answer.session_id, answer.responses) == (0, 0, ())


def test_a_request_that_forgets_all_partitions_does_not_wait(wire: KafkaWire, topic: str) -> None:
    forgotten = (ForgottenTopic(topic=topic, partitions=(0,)),)
    request = _fetch(
        max_wait_ms=_NEVER_MS, session_id=_session(wire, topic), session_epoch=1, forgotten_topics_data=forgotten
    )
    answer = wire.call(request, _VERSION)
    assert (answer.error_code, answer.session_id, answer.responses) == (0, 0, ())


def test_a_request_whose_partitions_are_unchanged_waits_for_records(
    module_broker: EmbeddedBroker, wire: KafkaWire, topic: str
) -> None:
    wire.send(_fetch(max_wait_ms=_NEVER_MS, session_id=_session(wire, topic), session_epoch=1), _VERSION)
    with KafkaWire(module_broker) as other:
        _produce(other, topic)
    _, answer = wire.receive(FetchRequest.API_KEY, _VERSION)
    (found,) = answer.responses[0].partitions
    assert (found.error_code, found.high_watermark) == (0, 1)
    assert found.records


def test_a_partition_whose_reads_are_too_many_has_no_records_and_no_error(
    wire: KafkaWire, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    _produce(wire, topic)

    async def refuse(*args: Any, **options: Any) -> None:
        raise ThrottledError("too many reads from the remote store are pending")

    with monkeypatch.context() as patch:
        patch.setattr(LogReads, "run_in", refuse)
        (found,) = wire.call(_fetch(topic), _VERSION).responses[0].partitions
        assert (found.error_code, found.high_watermark, bytes(found.records)) == (0, 1, b"")
    (found,) = wire.call(_fetch(topic), _VERSION).responses[0].partitions
    assert (found.error_code, found.high_watermark) == (0, 1)
    assert found.records
