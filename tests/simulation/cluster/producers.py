"""Simulated producers: idempotent ones with several batches in flight, and transactional ones."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from millrace.errors import DuplicateSequenceError, MillraceError, OutOfOrderSequenceError
from millrace.protocol import millrace_pb2 as pb
from millrace.records import Record, build_rows_batch

from ...histories.history import Outcome, Place, Write
from .clients import Client, check, check_topics

if TYPE_CHECKING:
    from .world import World

_ACKNOWLEDGED_MS: Final = 1_500
_TRANSACTION_TIMEOUT_MS: Final = 3_000


def produce_request(place: Place, records: bytes, transactional_id: str = "") -> pb.ProduceRequest:
    data = pb.ProduceRequest.PartitionData(partition=place.partition, records=records)
    return pb.ProduceRequest(
        transactional_id=transactional_id,
        acks=-1,
        timeout_ms=_ACKNOWLEDGED_MS,
        topics=[pb.ProduceRequest.TopicData(name=place.topic, partitions=[data])],
    )


async def produce(client: Client, place: Place, request: pb.ProduceRequest) -> int:
    """Send records and return the first offset. Raises the partition's error."""
    answer: pb.ProduceResponse = await client.ask_leader(place, request)
    result = answer.topics[0].partitions[0]
    if result.error.code:
        client.forget(place)
    check(result.error)
    return result.base_offset


@dataclass
class _Batch:
    place: Place
    values: Sequence[str]
    records: bytes
    number: int
    before: _Batch | None
    """The batch before it in its partition."""
    is_acknowledged: bool = False
    offset: int | None = None


class Writer(Client):
    """An idempotent producer with acks=all. It retries each batch until it is acknowledged."""

    def __init__(self, world: World, name: str) -> None:
        super().__init__(world, name)
        self._producer_id = -1
        self._sequences: dict[Place, int] = {}
        self._latest: dict[Place, _Batch] = {}
        self._number = 0

    async def work(self) -> None:
        answer = await self.settled(lambda: self.ask_any(pb.InitProducerIdRequest(producer_id=-1, producer_epoch=-1)))
        self._producer_id = answer.producer_id
        while not self.world.is_over:
            place = self.choose.choice(self.world.places)
            # The broker accepts a producer's first batch with any sequence number, so no later batch may overtake it.
            count = self.choose.choice([1, 1, 2, 4]) if place in self._latest else 1
            batches = [self._next(place) for _ in range(count)]
            await asyncio.gather(*(self._deliver(each) for each in batches))
            await self.rest()

    def _next(self, place: Place) -> _Batch:
        values = [self.new_value() for _ in range(self.choose.randint(1, 3))]
        sequence = self._sequences.get(place, 0)
        self._sequences[place] = sequence + len(values)
        records = build_rows_batch(
            [Record(key=None, value=value.encode(), timestamp_ms=self.world.now_ms) for value in values],
            producer_id=self._producer_id,
            producer_epoch=0,
            base_sequence=sequence,
        )
        self._number += 1
        batch = _Batch(place, values, records, self._number, self._latest.get(place))
        if batch.before is not None and batch.before.is_acknowledged:
            batch.before.before = None
        self._latest[place] = batch
        return batch

    async def _deliver(self, batch: _Batch) -> None:
        write = self.world.recorder.begin(self.name, batch.number, [(batch.place, value) for value in batch.values])
        while not batch.is_acknowledged:
            was_next = batch.before is None or batch.before.is_acknowledged
            try:
                asked = await self.leader(batch.place)
                # A replaced leader that does not know its replacement may lack later acknowledged records.
                has_all = was_next and self.world.invariants.newest_leader(batch.place) == f"broker-{asked}"
                batch.offset = await produce(self, batch.place, produce_request(batch.place, batch.records))
                batch.is_acknowledged = True
            except OutOfOrderSequenceError as error:
                if has_all:
                    self.world.violated(f"{self.name}: what was acknowledged before is forgotten: {error.message}")
                await self.rest(0.05)
            except DuplicateSequenceError:
                batch.is_acknowledged = True
            except MillraceError as error:
                if not error.retriable:
                    self.world.violated(f"{self.name}: {batch.place} refused for good: {error!r}")
                await self.rest()
        if batch.offset is not None:
            self.world.recorder.acknowledged(batch.place, batch.offset, batch.values)
        offsets = [None if batch.offset is None else batch.offset + index for index in range(len(batch.values))]
        self.world.recorder.ended(write, Outcome.OK, offsets)


@dataclass
class _Transaction:
    write: Write
    sequences: dict[Place, int] = field(default_factory=dict)


class TransactionalClient(Client):
    """A producer with a transactional id. ``producer`` is its id and epoch, or None before it has any."""

    def __init__(self, world: World, name: str) -> None:
        super().__init__(world, name)
        self.producer: tuple[int, int] | None = None
        self._numbers = 0

    async def coordinator(self, request: Any) -> Any:
        return await self.settled(lambda: self.ask_coordinator(pb.TRANSACTION, self.name, request))

    async def begin_anew(self) -> None:
        """Initialize the transactional id, which aborts an open transaction."""
        request = pb.InitProducerIdRequest(
            transactional_id=self.name,
            transaction_timeout_ms=_TRANSACTION_TIMEOUT_MS,
            producer_id=-1,
            producer_epoch=-1,
        )
        while True:
            try:
                answer = await self.coordinator(request)
                self.producer = (answer.producer_id, answer.producer_epoch)
                return
            except MillraceError as error:
                self.world.violated(f"{self.name} is not let in: {error!r}")

    async def send(self, values: Sequence[tuple[Place, str]]) -> list[int]:
        """Add the partitions, send a batch to each in order, and return the offsets."""
        assert self.producer is not None
        producer_id, epoch = self.producer
        topics: dict[str, set[int]] = {}
        for place, _ in values:
            topics.setdefault(place.topic, set()).add(place.partition)
        add = pb.AddPartitionsToTxnRequest(
            transactional_id=self.name,
            producer_id=producer_id,
            producer_epoch=epoch,
            topics=[pb.TopicPartitions(name=name, partitions=sorted(numbers)) for name, numbers in topics.items()],
        )
        check_topics((await self.coordinator(add)).topics)
        sequences: dict[Place, int] = {}
        offsets = []
        for place, value in values:
            sequence = sequences.get(place, 0)
            sequences[place] = sequence + 1
            request = produce_request(place, self._batch(value, sequence), self.name)
            offset = await self.settled(lambda place=place, request=request: produce(self, place, request))  # type: ignore[misc]
            self.world.recorder.acknowledged(place, offset, [value])
            offsets.append(offset)
        return offsets

    def _batch(self, value: str, sequence: int) -> bytes:
        assert self.producer is not None
        return build_rows_batch(
            [Record(key=None, value=value.encode(), timestamp_ms=self.world.now_ms)],
            producer_id=self.producer[0],
            producer_epoch=self.producer[1],
            base_sequence=sequence,
            is_transactional=True,
        )

    async def end(self, *, committed: bool) -> None:
        """End the transaction. Raises errors that are not retriable."""
        assert self.producer is not None
        producer_id, epoch = self.producer
        request = pb.EndTxnRequest(
            transactional_id=self.name, producer_id=producer_id, producer_epoch=epoch, committed=committed
        )
        answer = await self.coordinator(request)
        self.producer = (answer.producer_id, answer.producer_epoch)

    def begin(self, values: Sequence[tuple[Place, str]]) -> int:
        self._numbers += 1
        return self.world.recorder.begin(self.name, self._numbers, values, is_transaction=True)


class Transactor(TransactionalClient):
    """A client that writes to several partitions in transactions.

    It aborts some, leaves some open, and also writes as a fenced producer.
    """

    async def work(self) -> None:
        while not self.world.is_over:
            if self.producer is None:
                await self.begin_anew()
            places = self.world.places
            values = [(self.choose.choice(places), self.new_value()) for _ in range(self.choose.randint(1, 3))]
            await self._transact(values, self.choose.choices(["commit", "abort", "leave", "haunt"], [8, 2, 1, 1])[0])
            await self.rest()
        await self.begin_anew()  # so that no transaction is left open

    async def _transact(self, values: Sequence[tuple[Place, str]], ending: str) -> None:
        write = self.begin(values)
        outcome = Outcome.FAILED
        offsets: list[int] = []
        try:
            offsets = await self.send(values)
            if ending == "commit":
                outcome = Outcome.UNKNOWN
                self.world.recorder.committing(write)
                await self.end(committed=True)
                outcome = Outcome.OK
            elif ending == "abort":
                await self.end(committed=False)
            elif ending == "haunt":
                await self._haunt([place for place, _ in values])
            else:
                self.producer = None
        except MillraceError as error:
            self.world.note(f"{self.name} starts again: {type(error).__name__}: {error.message[:80]}")
            self.producer = None
        self.world.recorder.ended(write, outcome, offsets)

    async def _haunt(self, written: Sequence[Place]) -> None:
        """Write although a new instance has fenced this producer.

        The batch must be new, because a leader may confirm a duplicate.
        """
        old = self.producer
        await self.begin_anew()
        new, self.producer = self.producer, old
        place, value = self.choose.choice(self.world.places), self.new_value()
        write, batch = self.begin([(place, value)]), self._batch(value, written.count(place))
        try:
            offset = await produce(self, place, produce_request(place, batch, self.name))
            self.world.violated(f"{self.name}: a producer that was replaced could write {place} {offset}")
        except MillraceError as error:
            self.world.note(f"{self.name} is fenced: {type(error).__name__}")
        self.world.recorder.ended(write, Outcome.FAILED)
        self.producer = new
