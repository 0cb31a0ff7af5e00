"""Tests of the accumulator of single records.

Each record succeeds or fails once and in order, whatever is drained and fails meanwhile.
"""

import uuid
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.clients.model import BatchMetadata, PartitionInfo, RecordMetadata, TopicDescription
from millrace.clients.producing.accumulator import Accumulator
from millrace.clients.producing.batch_making import BatchMaker
from millrace.clients.producing.batching import BuiltBatch, halves_of
from millrace.clients.producing.futures import Outcomes, SendFuture
from millrace.clients.producing.memory import BufferMemory, NoRoomError
from millrace.clients.producing.record_buffer import RecordBuffer
from millrace.clients.producing.wire import stamped_parts
from millrace.config.client import ProducerConfig
from millrace.errors import (
    BrokerUnavailableError,
    ClientClosedError,
    MessageTooLargeError,
    MillraceError,
    SchemaMismatchError,
    TransactionAbortedError,
)
from millrace.records import decode_range
from millrace.schemas import parse_schema

from ....integration.waiting import STALL_S


def _topic(partitions: int, ddl: str | None = None) -> TopicDescription:
    return TopicDescription(
        name="t",
        topic_id=uuid.UUID(int=1),
        partitions=tuple(
            PartitionInfo(partition=number, leader=0, leader_epoch=0, replicas=(0,), isr=(0,))
            for number in range(partitions)
        ),
        schema_id=7 if ddl else 0,
        schema=parse_schema(ddl) if ddl else None,
    )


class _Metadata:
    def __init__(self, topic: TopicDescription) -> None:
        self.current = topic
        self.failure: MillraceError | None = None
        self.is_forgotten = False

    def known(self, name: str) -> TopicDescription | None:
        return None if self.is_forgotten else self.current

    def topic(self, name: str) -> TopicDescription:
        if self.failure is not None:
            raise self.failure
        return self.current


class _Sender:
    """A sender whose batches succeed or fail when the test decides.

    The sender keeps them until then.
    """

    def __init__(self) -> None:
        self.queued: list[tuple[BuiltBatch, Callable[..., None]]] = []
        self.log: dict[int, list[bytes]] = defaultdict(list)
        self.created: list[float] = []
        self.busy = False
        self.woken = 0

    def enqueue(self, topic: str, batch: BuiltBatch, completion: Callable[..., None], *, created: float) -> None:
        self.queued.append((batch, completion))
        self.created.append(created)

    def wake(self) -> None:
        self.woken += 1

    def send_at_once(self, topic: str, work: Any) -> bool:
        return False

    def is_busy(self, topic: str) -> bool:
        return self.busy

    def finish(self, position: int, error: MillraceError | None = None) -> None:
        """Answer the oldest batch of some partition. The real sender keeps the order of each partition too."""
        partition = self.queued[position % len(self.queued)][0].partition
        entry = next(entry for entry in self.queued if entry[0].partition == partition)
        batch, completion = entry
        if isinstance(error, MessageTooLargeError) and batch.num_rows > 1:
            at = self.queued.index(entry)
            self.queued[at : at + 1] = [(half, completion) for half in halves_of(batch)]
            return
        self.queued.remove(entry)
        if error is not None:
            completion(None, -1, error, batch)
            return
        log = self.log[partition]
        base_offset = len(log)
        sent = pa.py_buffer(b"".join(stamped_parts(batch.records, None)))
        for part in decode_range(sent, 0, 2**62, lambda schema_id: parse_schema("id INT")):
            log += part.columns.column(part.columns.num_columns - 1).to_pylist()
        metadata = BatchMetadata(topic="t", partition=partition, base_offset=base_offset, num_records=batch.num_rows)
        completion(metadata, -1, None, batch)


class _World:
    def __init__(
        self, topic: TopicDescription, options: dict[str, Any] | None = None, *, may_block: bool = True
    ) -> None:
        options = options or {}
        config = ProducerConfig.load({"batch.size": 300, "buffer.memory": 10**6, "max.block.ms": 0, **options})
        self.topic = topic
        self.now_s = 1000.0
        self.metadata = _Metadata(topic)
        self.memory = BufferMemory(config.buffer_memory)
        self.sender = _Sender()
        self.refusal: MillraceError | None = None
        self.refused: list[MillraceError] = []
        self.accumulator = Accumulator(
            config,
            self.metadata,  # type: ignore[arg-type]
            self.memory,
            Outcomes(),
            BatchMaker(config, None),
            self.sender,  # type: ignore[arg-type]
            check_can_send=self._check,
            on_refusal=self.refused.append,
            may_block=may_block,
            monotonic=lambda: self.now_s,
        )

    def _check(self) -> None:
        if self.refusal is not None:
            raise self.refusal


_keys = st.none() | st.sampled_from([b"a", b"b", b"c"])
_steps = st.lists(
    st.one_of(
        st.tuples(st.just("send"), _keys, st.integers(0, 120), st.integers(-1, 2)),
        st.tuples(st.just("value"), st.integers(0, 120)),
        st.tuples(st.just("drain")),
        st.tuples(st.just("succeed"), st.integers(0, 20)),
        st.tuples(st.just("fail"), st.integers(0, 20)),
        st.tuples(st.just("halve"), st.integers(0, 20)),
        st.tuples(st.just("abandon")),
    ),
    min_size=1,
    max_size=80,
)


@given(_steps, st.integers(1, 3))
def test_every_record_succeeds_or_fails_once_and_in_order(steps: list[Any], partitions: int) -> None:
    world = _World(_topic(partitions))
    buffer = world.accumulator.buffer(world.topic)
    sent: list[tuple[bytes, SendFuture[RecordMetadata]]] = []
    told: list[int] = []
    for step, *arguments in steps:
        number = len(sent)
        if step == "send":
            key, size, partition = arguments
            value = b"%06d" % number + b"x" * size
            future = buffer.append(
                key, value, (), None, min(partition, partitions - 1), lambda *_, number=number: told.append(number)
            )
            sent.append((value, future))
        elif step == "value":
            value = b"%06d" % number + b"y" * arguments[0]
            sent.append((value, buffer.append_value(value)))
            sent[-1][1].add_done_callback(lambda _, number=number: told.append(number))
        elif step == "drain":
            world.accumulator.drain("t")
        elif step == "abandon":
            world.accumulator.abandon(TransactionAbortedError("abandoned"))
        elif world.sender.queued:
            error = {"fail": ClientClosedError("failed"), "halve": MessageTooLargeError("too large")}.get(step)
            world.sender.finish(arguments[0], error)
    world.accumulator.drain_all()
    while world.sender.queued:
        world.sender.finish(0)
    offsets: dict[int, list[int]] = defaultdict(list)
    for value, future in sent:
        assert future.done()
        if future.exception() is None:
            place = future.result()
            assert world.sender.log[place.partition][place.offset] == value
            offsets[place.partition].append(place.offset)
    assert sum(map(len, offsets.values())) == sum(map(len, world.sender.log.values()))
    for found in offsets.values():
        if partitions == 1:
            assert found == sorted(found)
    assert sorted(told) == list(range(len(sent)))
    assert world.memory.used_bytes == 0


def test_callbacks_of_a_partition_are_called_in_order_after_the_outcome() -> None:
    world = _World(_topic(1))
    buffer = world.accumulator.buffer(world.topic)
    told: list[tuple[int, RecordMetadata | None]] = []
    for number in range(20):
        buffer.append(None, b"x", (), None, -1, lambda metadata, error, n=number: told.append((n, metadata)))  # type: ignore[misc]
        world.accumulator.drain("t")
    while world.sender.queued:
        world.sender.finish(0)
    assert [number for number, _ in told] == list(range(20))
    assert [metadata.offset for _, metadata in told if metadata is not None] == list(range(20))


def test_the_delivery_timeout_of_a_chunk_begins_with_its_first_record() -> None:
    world = _World(_topic(1))
    buffer = world.accumulator.buffer(world.topic)
    buffer.append_value(b"x")
    world.now_s += 7
    buffer.append_value(b"y")
    world.accumulator.drain("t")
    assert world.sender.created == [1000]


@pytest.mark.parametrize(
    ("delivery_ms", "linger_ms", "held_s"), [(120_000, 0, 5), (30_000, 0, 5), (8_000, 0, 2), (8_000, 4_000, 5)]
)
def test_a_chunk_of_a_busy_topic_is_drained_long_before_its_delivery_timeout(
    delivery_ms: int, linger_ms: int, held_s: float
) -> None:
    options = {"request.timeout.ms": 4_000, "delivery.timeout.ms": delivery_ms, "linger.ms": linger_ms}
    world = _World(_topic(2), options)
    world.sender.busy = True
    world.accumulator.buffer(world.topic).append_value(b"x")
    world.now_s += linger_ms / 1000
    assert world.accumulator.drain_due() == held_s - linger_ms / 1000
    world.now_s = 1000 + held_s - 0.5
    assert world.accumulator.drain_due() == 0.5
    assert not world.sender.queued
    world.now_s += 0.5
    assert world.accumulator.drain_due() is None
    assert len(world.sender.queued) == 1
    assert world.sender.created == [1000]


def test_a_chunk_of_a_busy_topic_is_drained_when_no_batch_waits_any_more() -> None:
    world = _World(_topic(2))
    world.sender.busy = True
    world.accumulator.buffer(world.topic).append_value(b"x")
    world.accumulator.drain_due()
    assert not world.sender.queued
    world.sender.busy = False
    assert world.accumulator.drain_due() is None
    assert len(world.sender.queued) == 1


def _append_many(buffer: RecordBuffer, accepted: list[SendFuture[RecordMetadata]] | None = None) -> None:
    for _ in range(1000):
        future = buffer.append_value(b"x" * 100)
        if accepted is not None:
            accepted.append(future)


def test_appended_records_are_counted_until_their_acknowledgement() -> None:
    world = _World(_topic(1), {"buffer.memory": 4000, "batch.size": 1000})
    buffer = world.accumulator.buffer(world.topic)
    with pytest.raises(MillraceError, match=r"buffer\.memory=4000"):
        _append_many(buffer)
    assert world.memory.used_bytes <= 4000 + 1000
    while world.sender.queued:
        world.sender.finish(0)
    world.accumulator.drain_all()
    while world.sender.queued:
        world.sender.finish(0)
    assert world.memory.used_bytes == 0


def test_a_thread_that_must_not_wait_gets_an_error_and_makes_no_batches() -> None:
    world = _World(_topic(1), {"buffer.memory": 4000, "batch.size": 1000}, may_block=False)
    buffer = world.accumulator.buffer(world.topic)
    accepted: list[SendFuture[RecordMetadata]] = []
    with pytest.raises(NoRoomError) as full:
        _append_many(buffer, accepted)
    assert len(accepted) > 10
    assert not world.sender.queued
    assert world.accumulator.drain_due() is None
    assert sum(batch.num_rows for batch, _ in world.sender.queued) == len(accepted)
    full.value.reserved(full.value.size_bytes)  # as if the memory had been granted meanwhile
    buffer.append_value(b"x")


def test_only_the_records_that_do_not_fit_fail() -> None:
    world = _World(_topic(1, "id INT, tags ARRAY<STRING>"))
    buffer = world.accumulator.buffer(world.topic)
    futures = [buffer.append(None, {"id": 1, "tags": tags}, (), None, -1) for tags in (["a"], [3], ["b"], [4], None)]
    world.accumulator.drain("t")
    world.sender.finish(0)
    errors = [type(future.exception(STALL_S)) for future in futures]
    assert errors == [type(None), SchemaMismatchError, type(None), SchemaMismatchError, type(None)]
    assert [futures[row].result().offset for row in (0, 2, 4)] == [0, 1, 2]
    assert world.refused == [futures[row].exception() for row in (1, 3)]


def test_without_a_broker_records_become_batches_by_the_last_known_description() -> None:
    world = _World(_topic(1, "id INT, tags ARRAY<STRING>"))
    buffer = world.accumulator.buffer(world.topic)
    world.metadata.is_forgotten, world.metadata.failure = True, BrokerUnavailableError("no broker answers")
    futures = [buffer.append(None, {"id": 1, "tags": tags}, (), None, -1) for tags in (["a"], [3])]
    world.accumulator.drain("t")
    world.sender.finish(0)
    assert futures[0].result().offset == 0
    assert isinstance(futures[1].exception(STALL_S), SchemaMismatchError)


def test_records_that_misfit_a_forgotten_schema_are_sent_by_the_present_one() -> None:
    world = _World(_topic(1, "id INT, tags ARRAY<STRING>"))
    buffer = world.accumulator.buffer(world.topic)
    future = buffer.append(None, {"id": 1, "tags": [3]}, (), None, -1)
    world.metadata.is_forgotten, world.metadata.current = True, _topic(1, "id INT, tags ARRAY<INT>")
    world.accumulator.drain("t")
    assert [batch.num_rows for batch, _ in world.sender.queued] == [1]
    assert not future.done()


def test_abandoned_records_are_no_refusal() -> None:
    world = _World(_topic(1))
    future = world.accumulator.buffer(world.topic).append_value(b"x")
    world.accumulator.abandon(TransactionAbortedError("abandoned"))
    assert isinstance(future.exception(STALL_S), TransactionAbortedError)
    assert not world.refused


def test_records_that_become_batches_too_late_fail_with_the_reason() -> None:
    world = _World(_topic(1))
    buffer = world.accumulator.buffer(world.topic)
    future = buffer.append_value(b"x")
    world.refusal = TransactionAbortedError("too late")
    world.accumulator.drain("t")
    assert isinstance(future.exception(STALL_S), TransactionAbortedError)
    assert world.memory.used_bytes == 0


def test_a_closed_accumulator_takes_nothing() -> None:
    world = _World(_topic(1))
    buffer = world.accumulator.buffer(world.topic)
    future = buffer.append_value(b"x")
    world.accumulator.close(ClientClosedError("closed"))
    assert isinstance(future.exception(STALL_S), ClientClosedError)
    with pytest.raises(ClientClosedError):
        buffer.append_value(b"x")
    assert world.memory.used_bytes == 0


def test_linger_and_full_chunks_decide_when() -> None:
    world = _World(_topic(1), {"linger.ms": 60_000})
    buffer = world.accumulator.buffer(world.topic)
    buffer.append_value(b"x")
    left_s = world.accumulator.drain_due()
    assert left_s == 60
    assert not world.sender.queued
    buffer.append_value(b"x" * 300)
    assert [batch.num_rows for batch, _ in world.sender.queued] == [2]
