"""Tests of Fetch by the protocol of Kafka.

The tests cover waits, stored bytes, and partitions that cannot be read now.
"""

from __future__ import annotations

import struct
import time
from collections.abc import Coroutine, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import uuid4

import pyarrow as pa
import pytest

from millrace.acls import AccessControlEntry, AclBinding, AclOperation, AclPermission, ResourcePattern, ResourceType
from millrace.clients import Admin, Producer
from millrace.errors import StorageError, ThrottledError
from millrace.kafka_protocol.calls.fetch import FetchPartition, FetchRequest, FetchTopic, ForgottenTopic
from millrace.kafka_protocol.calls.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from millrace.records import Compression, Record, build_rows_batch, compiled, read_rows, scan_headers
from millrace.records.message_set import build_entries
from millrace_broker.kafka_api.row_batches import RowBatches
from millrace_broker.log import LogManager, PartitionLog
from millrace_broker.log.read_ahead import ReadAhead
from millrace_broker.log.read_threads import LogReads
from millrace_broker.runtime import Executors
from millrace_broker.security import ACL_AUTHORIZER
from millrace_broker.testing import EmbeddedBroker

from .kafka_clients import consumer, create_topic, read
from .kafka_wire import KafkaWire
from .waiting import eventually

_VERSION = 12
_HEAD_BYTES = 16
"""The base offset, the length and the leader epoch of a batch, which its checksum does not cover."""
_NEVER_MS = 1_000_000


@pytest.fixture
def wire(module_broker: EmbeddedBroker, topic: str) -> Iterator[KafkaWire]:
    create_topic(module_broker, topic)
    with KafkaWire(module_broker) as opened:
        yield opened


def _produce(wire: KafkaWire, topic: str, batch: bytes | None = None) -> None:
    records = batch or bytes(build_rows_batch([Record(value=b"x", timestamp_ms=1)]))
    partitions = (PartitionProduceData(index=0, records=records),)
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


def _limited_fetch(topic: str, min_bytes: int, partition_max_bytes: int, max_wait_ms: int = _NEVER_MS) -> FetchRequest:
    partitions = (FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=partition_max_bytes),)
    topics = (FetchTopic(topic=topic, partitions=partitions),)
    return FetchRequest(max_wait_ms=max_wait_ms, min_bytes=min_bytes, max_bytes=100_000, topics=topics)


def _session(wire: KafkaWire, topic: str) -> int:
    """Begin a session of the topic, and return its id."""
    session_id: int = wire.call(_fetch(topic, session_epoch=0), _VERSION).session_id
    assert session_id
    return session_id


@pytest.mark.parametrize("compression", Compression)
def test_a_batch_is_stored_and_answered_byte_for_byte_as_it_was_sent(
    module_broker: EmbeddedBroker, wire: KafkaWire, topic: str, compression: Compression
) -> None:
    """The broker sets the base offset and the leader epoch."""
    records = [Record(key=b"k", value=b"x" * 30, headers=[("h", b"1")], timestamp_ms=number) for number in range(3)]
    sent = bytes(build_rows_batch(records, compression=compression))
    for _ in range(2):
        _produce(wire, topic, sent)
    directory = Path(module_broker.server.broker.config.log_directories[0]) / f"{topic}-0"
    stored = (directory / f"{0:020}.log").read_bytes()
    (found,) = wire.call(_fetch(topic), _VERSION).responses[0].partitions
    assert bytes(found.records) == stored
    batches = [stored[: len(sent)], stored[len(sent) :]]
    assert [batch[:_HEAD_BYTES] for batch in batches] == [
        struct.pack(">qii", base_offset, len(sent) - 12, 0) for base_offset in (0, 3)
    ]
    assert [batch[_HEAD_BYTES:] for batch in batches] == [sent[_HEAD_BYTES:]] * 2


@pytest.mark.parametrize("magic", [0, 1])
def test_stored_messages_of_old_formats_are_read_by_kafkas_clients(tmp_path: Path, magic: int) -> None:
    """The log of a former Kafka, brought into a directory. Messages are sent as batches of today's format."""
    records = [Record(key=b"k", value=b"%d" % number, timestamp_ms=5, offset=number) for number in range(20)]
    data = build_entries(records[:10], magic=magic, compression=Compression.GZIP) + build_entries(
        records[10:], magic=magic
    )
    broker = EmbeddedBroker(tmp_path).start()
    create_topic(broker, "t", retention_ms="-1")
    directory = Path(broker.server.broker.config.log_directories[0]) / "t-0"
    broker.stop()
    for path in directory.iterdir():
        if path.name.startswith("0"):
            path.unlink()
    (directory / f"{0:020}.log").write_bytes(data)
    with broker:
        with KafkaWire(broker) as wire:
            _produce(wire, "t")
        reader = consumer(broker, "readers")
        reader.subscribe(["t"])
        found = read(reader, 21)
        reader.close()
    assert [(each.offset(), each.key(), each.value()) for each in found[:20]] == [
        (each.offset, each.key, each.value) for each in records
    ]
    assert {each.timestamp()[1] for each in found[:20]} == {5 if magic else -1}
    assert (found[20].offset(), found[20].value()) == (20, b"x")


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


def test_a_session_of_names_is_not_continued_with_ids(wire: KafkaWire, topic: str) -> None:
    session_id = _session(wire, topic)
    answer = wire.call(_fetch(session_id=session_id, session_epoch=1), _VERSION + 1)
    assert answer.error_code == 106  # FETCH_SESSION_TOPIC_ID_ERROR
    assert wire.call(_fetch(session_id=session_id, session_epoch=1), _VERSION).error_code == 0


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


def test_an_unknown_topic_does_not_end_the_wait_for_others(
    module_broker: EmbeddedBroker, wire: KafkaWire, topic: str
) -> None:
    """Otherwise a client whose topic was deleted would fetch without a pause."""
    topics = [
        FetchTopic(topic_id=topic_id, partitions=_fetch(topic).topics[0].partitions)
        for topic_id in (uuid4(), module_broker.server.broker.catalog.topics[topic].topic_id)
    ]
    request = replace(_fetch(max_wait_ms=_NEVER_MS), topics=tuple(topics))
    alone = wire.call(replace(request, topics=request.topics[:1]), _VERSION + 1)
    assert [each.partitions[0].error_code for each in alone.responses] == [100], "at once: UNKNOWN_TOPIC_ID"
    wire.send(request, _VERSION + 1)
    with KafkaWire(module_broker) as other:
        _produce(other, topic)
    _, answer = wire.receive(FetchRequest.API_KEY, _VERSION + 1)
    unknown, found = (each.partitions[0] for each in answer.responses)
    assert (unknown.error_code, found.error_code) == (100, 0)
    assert found.records


def test_a_denied_topic_does_not_end_the_wait_for_others(tmp_path: Path) -> None:
    options = {"authorizer.class.name": ACL_AUTHORIZER, "allow.everyone.if.no.acl.found": "true"}
    entry = AccessControlEntry("User:alice", "*", AclOperation.READ, AclPermission.ALLOW)
    with EmbeddedBroker(tmp_path / "data", options=options) as broker, Admin(broker.bootstrap_servers) as admin:
        for name in ("closed", "open"):
            admin.create_topic(name)
        admin.create_acls([AclBinding(ResourcePattern(ResourceType.TOPIC, "closed"), entry)])
        with KafkaWire(broker) as wire, KafkaWire(broker) as other:
            wire.send(_fetch("closed", "open", max_wait_ms=_NEVER_MS), _VERSION)
            _produce(other, "open")
            _, answer = wire.receive(FetchRequest.API_KEY, _VERSION)
    denied, found = (each.partitions[0] for each in answer.responses)
    assert (denied.error_code, found.error_code) == (29, 0)
    assert found.records


def test_a_read_that_ends_with_an_older_segment_does_not_wait_for_min_bytes(
    module_broker: EmbeddedBroker, wire: KafkaWire, topic: str
) -> None:
    name = f"{topic}-small"
    create_topic(module_broker, name, segment_bytes="100")
    for _ in range(3):  # each in its segment
        _produce(wire, name)
    (found,) = wire.call(_limited_fetch(name, 10_000, 10_000), _VERSION).responses[0].partitions
    assert [header.base_offset for _, header in scan_headers(bytes(found.records))] == [0]


def test_a_read_that_its_limit_ended_does_not_wait_for_min_bytes(wire: KafkaWire, topic: str) -> None:
    """The limit is between two batches. Kafka sends a part of the second one, and so has the bytes."""
    for _ in range(2):
        _produce(wire, topic)
    (found,) = wire.call(_limited_fetch(topic, 100, 100), _VERSION).responses[0].partitions
    assert [header.base_offset for _, header in scan_headers(bytes(found.records))] == [0]


@pytest.mark.parametrize("partition_max_bytes", [100, 10_000])
def test_a_read_of_too_few_bytes_waits(wire: KafkaWire, topic: str, partition_max_bytes: int) -> None:
    """With the small limit, no number of records is enough."""
    for _ in range(2):
        _produce(wire, topic)
    started = time.monotonic()
    wire.call(_limited_fetch(topic, 1000, partition_max_bytes, max_wait_ms=300), _VERSION)
    assert time.monotonic() - started >= 0.3


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


@pytest.mark.parametrize("is_columnar", [False, True])
def test_what_a_consumer_fetches_next_is_read_ahead(
    module_broker: EmbeddedBroker, topic: str, is_columnar: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    create_topic(module_broker, topic)
    compiled.load_loops()
    values, taken, converted = [b"%d" % number * 200 for number in range(20)], list[int](), list[int]()
    take, convert = ReadAhead.take, RowBatches.convert

    def counted_take(ahead: ReadAhead, log: PartitionLog, offset: int, *limits: int) -> bytes | None:
        found = take(ahead, log, offset, *limits)
        taken.extend([offset] if found is not None and log.topic == topic else [])
        return found

    async def counted_conversion(rows: RowBatches, *arguments: Any, is_ahead: bool = False) -> None:
        await convert(rows, *arguments, is_ahead=is_ahead)
        converted.extend(each.wanted.first for each in arguments[1] if is_ahead)

    monkeypatch.setattr(ReadAhead, "take", counted_take)
    monkeypatch.setattr(RowBatches, "convert", counted_conversion)
    if is_columnar:
        with Producer({"bootstrap.servers": module_broker.bootstrap_servers}) as producer:
            for value in values:
                producer.send_table(topic, pa.table({"value": pa.array([value], pa.binary())}))
                producer.flush()
    with KafkaWire(module_broker) as wire:
        for value in [] if is_columnar else values:
            _produce(wire, topic, bytes(build_rows_batch([Record(value=value, timestamp_ms=1)])))
        found: list[bytes | None] = []
        while len(found) < len(values):
            partitions = (FetchPartition(partition=0, fetch_offset=len(found), partition_max_bytes=1000),)
            fetch = FetchRequest(
                max_wait_ms=0, min_bytes=1, max_bytes=10_000, topics=(FetchTopic(topic=topic, partitions=partitions),)
            )
            (part,) = wire.call(fetch, _VERSION).responses[0].partitions
            records = bytes(part.records)
            found += (each.value for at, header in scan_headers(records) for each in read_rows(records, at, header))
            # The next request may come before the broker has read ahead, as that of any client.
            eventually(lambda: not list(module_broker.server.broker.executors._tasks))
    assert found == values
    assert len(taken) > 2
    assert bool(converted) is is_columnar


def test_nothing_is_read_ahead_from_a_disk_that_has_failed(
    wire: KafkaWire, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for _ in range(5):
        _produce(wire, topic)
    ended, begin = list[str](), Executors.begin

    def fail(*_: object) -> None:
        raise StorageError("offline")

    def begin_after_a_failure(executors: Executors, work: Coroutine[Any, Any, None]) -> None:
        async def observed() -> None:
            await work
            ended.append(topic)

        monkeypatch.setattr(LogManager, "get", fail)
        begin(executors, observed())

    monkeypatch.setattr(Executors, "begin", begin_after_a_failure)
    (found,) = wire.call(_limited_fetch(topic, 1, 100), _VERSION).responses[0].partitions
    assert found.records
    assert eventually(lambda: ended) == [topic]
