"""Simulated producers, idempotent and transactional.

Idempotent producers have several batches in flight.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from millrace.errors import DuplicateSequenceError, MillraceError, OutOfOrderSequenceError
from millrace.protocol import millrace_pb2 as pb
from millrace.records import Record, build_rows_batch

from ...histories.history import Outcome, Place, Write
from .clients import Client, check, check_topics

if TYPE_CHECKING:
    from .world import World

ACKNOWLEDGED_MS: Final = 1_500
TRANSACTION_TIMEOUT_MS: Final = 3_000


class Producing(Client):
    """A client that sends records."""

    async def initialize(self, transactional_id: str = "") -> tuple[int, int]:
        """Return a producer id and its epoch."""
        request = pb.InitProducerIdRequest(
            transactional_id=transactional_id,
            transaction_timeout_ms=TRANSACTION_TIMEOUT_MS if transactional_id else 0,
            producer_id=-1,
            producer_epoch=-1,
        )
        asked = (
            self.ask_coordinator(pb.TRANSACTION, transactional_id, request)
            if transactional_id
            else self.ask_any(request)
        )
        answer = await asked
        return answer.producer_id, answer.producer_epoch

    async def produce(self, place: Place, records: bytes, transactional_id: str = "") -> int:
        """Send records and return the first offset. Raises the partition's error."""
        data = pb.ProduceRequest.PartitionData(partition=place.partition, records=records)
        request = pb.ProduceRequest(
            transactional_id=transactional_id,
            acks=-1,
            timeout_ms=ACKNOWLEDGED_MS,
            topics=[pb.ProduceRequest.TopicData(name=place.topic, partitions=[data])],
        )
        answer: pb.ProduceResponse = await self.ask_leader(place, request)
        result = answer.topics[0].partitions[0]
        if result.error.code:
            self.forget(place)
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


class Writer(Producing):
    """An idempotent producer with acks=all. It retries each batch until it is acknowledged."""

    def __init__(self, world: World, name: str) -> None:
        super().__init__(world, name)
        self._producer_id = -1
        self._sequences: dict[Place, int] = {}
        self._latest: dict[Place, _Batch] = {}
        self._number = 0

    async def work(self) -> None:
        self._producer_id, _ = await self.settled(self.initialize)
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
                batch.offset = await self.produce(batch.place, batch.records)
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


class TransactionalClient(Producing):
    """A producer with a transactional id. ``producer`` is its id and epoch, or None before it has any."""

    def __init__(self, world: World, name: str) -> None:
        super().__init__(world, name)
        self.producer: tuple[int, int] | None = None
        self._numbers = 0
        self._sequences: dict[Place, int] = {}
        """Next sequence number in each partition."""
        self._sequences_of: tuple[int, int] | None = None
        """The producer id and epoch that the sequence numbers belong to."""

    async def coordinator(self, request: Any) -> Any:
        return await self.settled(lambda: self.ask_coordinator(pb.TRANSACTION, self.name, request))

    async def begin_anew(self) -> None:
        """Initialize the transactional id, which aborts an open transaction."""
        while True:
            try:
                self.producer = await self.settled(lambda: self.initialize(self.name))
                return
            except MillraceError as error:
                self.world.violated(f"{self.name} is not let in: {error!r}")

    async def send(self, values: Sequence[tuple[Place, str]]) -> list[int]:
        """Add the partitions, send a batch to each in order, and return the offsets."""
        topics: dict[str, set[int]] = {}
        for place, _ in values:
            topics.setdefault(place.topic, set()).add(place.partition)
        await self.add({name: sorted(numbers) for name, numbers in topics.items()})
        offsets = []
        for place, value in values:
            batch = self._batch(place, value)
            offset = await self.settled(lambda place=place, batch=batch: self.produce(place, batch, self.name))  # type: ignore[misc]
            self.world.recorder.acknowledged(place, offset, [value])
            offsets.append(offset)
        return offsets

    async def add(self, topics: Mapping[str, Sequence[int]]) -> None:
        """Add partitions to the transaction."""
        assert self.producer is not None
        producer_id, epoch = self.producer
        request = pb.AddPartitionsToTxnRequest(
            transactional_id=self.name,
            producer_id=producer_id,
            producer_epoch=epoch,
            topics=[pb.TopicPartitions(name=name, partitions=numbers) for name, numbers in topics.items()],
        )
        check_topics((await self.coordinator(request)).topics)

    def _batch(self, place: Place, value: str) -> bytes:
        assert self.producer is not None
        if self._sequences_of != self.producer:
            self._sequences, self._sequences_of = {}, self.producer
        sequence = self._sequences.get(place, 0)
        self._sequences[place] = sequence + 1
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
                await self._haunt()
            else:
                self.producer = None
        except MillraceError as error:
            self.world.note(f"{self.name} starts again: {type(error).__name__}: {error.message[:80]}")
            self.producer = None
        self.world.recorder.ended(write, outcome, offsets)

    async def _haunt(self) -> None:
        """Write although a new instance has fenced this producer.

        The batch must be new, because a leader may confirm a duplicate.
        """
        old = self.producer
        await self.begin_anew()
        new, self.producer = self.producer, old
        place, value = self.choose.choice(self.world.places), self.new_value()
        write, batch = self.begin([(place, value)]), self._batch(place, value)
        try:
            offset = await self.produce(place, batch, self.name)
            self.world.violated(f"{self.name}: a producer that was replaced could write {place} {offset}")
        except MillraceError as error:
            self.world.note(f"{self.name} is fenced: {type(error).__name__}")
        self.world.recorder.ended(write, Outcome.FAILED)
        self.producer = new
