"""A broker's coordinators on a simulated disk, and their promises.

``Actors`` use the coordinators as handlers do, all at the same time. They are producers of transactions, committers, a
member of a group and a member of a share group. Each answer is a promise. ``verify`` compares a broker that was opened
on the disk after a crash with the promises at the crash.

Everything runs in one thread and on its own clock, so a seed replays it. ``InlineExecutor`` replaces the broker's
threads, and time advances by a millisecond with every turn of the event loop. Metadata is in a file on the real disk
(``EmbeddedStore`` syncs it itself). It has the state at the end of a run, because topics and producer ids are only
added.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from concurrent.futures import Executor, Future
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeVar

from millrace.config.broker import BrokerConfig
from millrace.config.listeners import Listener
from millrace.coordinator_records import OFFSETS_TOPIC, SHARE_STATE_TOPIC, TRANSACTIONS_TOPIC
from millrace.errors import CoordinatorLoadInProgressError, MillraceError, UnknownMemberError
from millrace.records import ControlType, Record, build_rows_batch, read_end_marker, read_rows
from millrace_broker.broker import Broker
from millrace_broker.groups import CommittedOffset, Identity, JoinRequest, MemberIdGiven, SyncRequest
from millrace_broker.log import PartitionLog, ProducedBatches
from millrace_broker.metadata import TopicSpec
from millrace_broker.opening import open_broker
from millrace_broker.quotas import CallClass, Lease
from millrace_broker.replication.runtime import ServedPartition
from millrace_broker.share_groups import Acknowledgement, FetchLimits, ShareFetchPartition, ShareHeartbeat
from millrace_broker.transactions import ProducerIdAndEpoch

from .contents import batches
from .disk import SimulatedDisk
from .world import WorldClock

T = TypeVar("T")

QUEUED: Final = 12
"""The number of records in the share group's partition."""
DELIVERIES_MAX: Final = 5
PRODUCERS: Final = ("first", "second")
COMMITTERS: Final = ("alone", "beside")
CREW: Final = "crew"
SHARERS: Final = "sharers"
TIME_OUT_MS: Final = 60_000
TURNS_MAX: Final = 100_000
NOBODY: Final = Identity(member_id="")
_KINDS: Final = (Acknowledgement.ACCEPT, Acknowledgement.RELEASE, Acknowledgement.REJECT)


class InlineExecutor(Executor):
    """A replacement of a thread pool. The work is done when ``submit`` returns."""

    def __init__(self, *_: Any, **__: Any) -> None:
        pass

    def submit(self, fn: Callable[..., T], /, *args: Any, **kwargs: Any) -> Future[T]:
        future: Future[T] = Future()
        try:
            future.set_result(fn(*args, **kwargs))
        except Exception as error:  # noqa: BLE001 - it is for the one who asked
            future.set_exception(error)
        return future


@dataclass
class Promises:
    """The callers' knowledge. A value that was *begun* may exist, and one that was *answered* does."""

    begun: Counter[str] = field(default_factory=Counter)
    """The highest offset whose commit a group has begun. The offsets rise by one."""
    answered: Counter[str] = field(default_factory=Counter)
    transactions: dict[str, dict[int, str]] = field(default_factory=lambda: defaultdict(dict))
    """By id and number: ``open``, ``committing``, ``committed`` or ``aborted``."""
    generation: int = 0
    assignment: bytes = b""
    """The latest generation whose assignment the crew's member got."""
    acquired: Counter[int] = field(default_factory=Counter)
    released: Counter[int] = field(default_factory=Counter)
    """The number of acquisitions of each queued record, and of answered releases."""
    ended: dict[int, str] = field(default_factory=dict)
    """Queued records that must not be delivered again: ``ending``, or ``ended`` once that was answered."""

    def copy(self) -> Promises:
        transactions: dict[str, dict[int, str]] = defaultdict(dict)
        transactions.update({name: dict(outcomes) for name, outcomes in self.transactions.items()})
        return Promises(
            self.begun.copy(),
            self.answered.copy(),
            transactions,
            self.generation,
            self.assignment,
            self.acquired.copy(),
            self.released.copy(),
            dict(self.ended),
        )


# --- the broker --------------------------------------------------------------------------------------------------


def config(directory: Path, *, syncs: bool) -> BrokerConfig:
    return BrokerConfig.load(
        {
            "log.dirs": str(directory),
            "log.flush.before.ack": str(syncs).lower(),
            "log.cleaner.enable": "false",
            "num.recovery.threads.per.data.dir": "1",
            "offsets.topic.num.partitions": "2",
            "offsets.topic.segment.bytes": "2000",
            "transaction.state.log.num.partitions": "2",
            "transaction.state.log.segment.bytes": "2000",
            "share.coordinator.state.topic.num.partitions": "1",
            "group.initial.rebalance.delay.ms": "0",
            "share.auto.offset.reset": "earliest",
        }
    )


@asynccontextmanager
async def opened(directory: Path, disk: SimulatedDisk, clock: WorldClock, *, syncs: bool) -> AsyncIterator[Broker]:
    broker = await open_broker(
        config(directory, syncs=syncs), endpoints={"PLAINTEXT": Listener("127.0.0.1", 1)}, clock=clock, files=disk
    )
    await broker.announce()
    try:
        for name, partitions in (("orders", 2), ("queue", 1)):
            if name not in broker.catalog.topics:
                await broker.executors.administer(
                    broker.changes.create, TopicSpec(name=name, partitions=partitions, configs={})
                )
                await broker.member.topics.led([name], TIME_OUT_MS)
        for name in (OFFSETS_TOPIC, TRANSACTIONS_TOPIC, SHARE_STATE_TOPIC):
            await broker.internal_topics.ensure(name)
        yield broker
    finally:
        await drive(broker, clock, broker.close())


async def drive(broker: Broker, clock: WorldClock, *work: Coroutine[Any, Any, Any]) -> list[Any]:
    """Let time pass until all tasks are done, and return their results."""
    tasks = [asyncio.ensure_future(each) for each in work]
    for _ in range(TURNS_MAX):
        if all(task.done() for task in tasks):
            break
        clock.ms += 1
        broker.timer.turn()
        await asyncio.sleep(0)
    else:
        raise AssertionError(f"not done after {TURNS_MAX} turns: {[task for task in tasks if not task.done()]}")
    return [task.result() for task in tasks]


async def ready(ask: Callable[[], T]) -> T:
    """Retry while the coordinator loads its log, and return its answer."""
    while True:
        try:
            return ask()
        except CoordinatorLoadInProgressError:
            await asyncio.sleep(0)


def served(broker: Broker, topic: str, number: int) -> ServedPartition:
    return broker.partitions.led(broker.partitions.topic(topic), number)


def make_durable(disk: SimulatedDisk, directory: Path) -> None:
    """Make the directories down to this one, which exists in reality, durable on the simulated disk."""
    disk.make_directory(directory)
    for above in directory.parents:
        disk.sync_directory(above)


async def fill_queue(broker: Broker) -> None:
    for number in range(QUEUED):
        batch = build_rows_batch([Record(key=None, value=b"%d" % number, timestamp_ms=broker.clock.now_ms())])
        partition = served(broker, "queue", 0)
        await broker.appends.append(partition, ProducedBatches(batch, partition.log.config))


# --- the callers -------------------------------------------------------------------------------------------------


class Actors:
    """Callers of a broker's coordinators. ``promises`` are the answers that they got."""

    def __init__(self, broker: Broker, clock: WorldClock, seed: int) -> None:
        self._broker = broker
        self._clock = clock
        self._seed = seed
        self.promises = Promises()

    def work(self, rounds: int) -> list[Coroutine[Any, Any, None]]:
        """Run all actors, each for so many rounds."""
        works: list[Coroutine[Any, Any, None]] = [self._transact(name, rounds) for name in PRODUCERS]
        works += [self._commit(group, rounds) for group in COMMITTERS]
        return [*works, self._belong(rounds), self._share(rounds), self._let_time_pass(rounds)]

    def _random(self, name: str) -> random.Random:
        return random.Random(f"{self._seed} {name}")

    async def _let_time_pass(self, rounds: int) -> None:
        """Let all actors be silent for longer than the timeouts of transactions, sessions and locks, now and then."""
        choose = self._random("time")
        for _ in range(rounds // 3):
            for _ in range(choose.randint(1, 200)):
                await asyncio.sleep(0)
            self._clock.ms += 70_000
            await self._broker.executors.run_io(self._broker.logs.tick)  # flushes, and other due tasks

    async def _commit(self, group: str, rounds: int) -> None:
        for offset in range(1, rounds + 1):
            shard = await ready(lambda: self._broker.groups.shard_of(group))
            await self._committed(group, offset, shard.commit(group, NOBODY, self._offset("queue", offset)))

    async def _committed(self, group: str, offset: int, commit: Awaitable[None]) -> None:
        self.promises.begun[group] = offset
        await commit
        self.promises.answered[group] = offset

    def _offset(self, topic: str, offset: int) -> dict[tuple[str, int], CommittedOffset]:
        return {(topic, 0): CommittedOffset(offset, -1, "", self._clock.now_ms())}

    # A producer of transactions writes a record to each partition of orders, and an offset, all with the same number.

    async def _transact(self, name: str, rounds: int) -> None:
        choose, outcomes = self._random(name), self.promises.transactions[name]
        producer: ProducerIdAndEpoch | None = None
        for number in range(1, rounds + 1):
            outcomes[number] = "open"
            try:
                if producer is None:
                    producer = await self._broker.transactions.init_producer_id(name, None, timeout_ms=TIME_OUT_MS)
                await self._write(name, producer, number)
                ending = choose.choices(["committing", "aborted", "left"], [7, 2, 1])[0]
                if ending == "left":
                    producer = None
                    continue
                outcomes[number] = ending
                is_committed = ending == "committing"
                producer = await self._broker.transactions.end(name, producer, committed=is_committed)
                if is_committed:
                    outcomes[number] = "committed"
            except MillraceError:  # it took too long, so the coordinator aborted it
                producer = None

    async def _write(self, name: str, producer: ProducerIdAndEpoch, number: int) -> None:
        transactions, group = self._broker.transactions, f"of-{name}"
        await transactions.add_partitions(name, producer, [("orders", 0), ("orders", 1)])
        batch = build_rows_batch(
            [Record(key=name.encode(), value=b"%d" % number, timestamp_ms=self._clock.now_ms())],
            producer_id=producer.producer_id,
            producer_epoch=producer.epoch,
            base_sequence=0,
            is_transactional=True,
        )
        places = [served(self._broker, "orders", partition) for partition in (0, 1)]
        checked = [ProducedBatches(batch, place.log.config, in_transaction=True) for place in places]
        await asyncio.gather(*map(self._broker.appends.append, places, checked))
        shard = await ready(lambda: self._broker.groups.shard_of(group))
        verify = partial(transactions.add_offsets, name, producer, group)
        transaction = await shard.log.transaction(producer.producer_id, producer.epoch, verify, begins=True)
        await shard.commit_transactional(group, NOBODY, self._offset("orders", number), transaction)

    # The only member of a group joins with changed metadata, gets its assignment, and commits.

    async def _belong(self, rounds: int) -> None:
        shard = await ready(lambda: self._broker.groups.shard_of(CREW))
        member_id, offset = "", 0
        for number in range(rounds):
            try:
                joined = await shard.join(CREW, _join(member_id, number))
                if isinstance(joined, MemberIdGiven):
                    member_id = joined.member_id
                    continue
                member_id = joined.member_id
                me = Identity(member_id=member_id, generation_id=joined.generation_id)
                part = b"part %d" % number
                synced = await shard.sync(CREW, SyncRequest(identity=me, assignments={member_id: part}))
                self.promises.generation, self.promises.assignment = joined.generation_id, synced.assignment
                offset += 1
                await self._committed(CREW, offset, shard.commit(CREW, me, self._offset("queue", offset)))
            except MillraceError as error:
                if isinstance(error, UnknownMemberError):
                    member_id = ""
                offset = max(offset - 1, self.promises.answered[CREW])

    # A member of a share group acquires records, and accepts, releases or rejects them.

    async def _share(self, rounds: int) -> None:
        choose, promises = self._random(SHARERS), self.promises
        for _ in range(rounds):
            for first, last, _ in await acquire(self._broker, choose.randint(1, 3)):
                for offset in range(first, last + 1):
                    promises.acquired[offset] += 1
                    await self._acknowledge(offset, choose.choices(_KINDS, [4, 4, 1])[0])

    async def _acknowledge(self, offset: int, what: Acknowledgement) -> None:
        is_end = what is not Acknowledgement.RELEASE or self.promises.acquired[offset] >= DELIVERIES_MAX
        try:
            answer = self._broker.share_groups.acknowledge(SHARERS, "m", "queue", 0, [(offset, offset, what)])
            if is_end:
                self.promises.ended[offset] = "ending"
            await answer
        except MillraceError:  # its lock has expired meanwhile
            return
        if is_end:
            self.promises.ended[offset] = "ended"
        else:
            self.promises.released[offset] += 1


def _join(member_id: str, number: int) -> JoinRequest:
    return JoinRequest(
        member_id=member_id,
        new_member_id=f"member-{number}",
        group_instance_id=None,
        client_id="c",
        client_host="/h",
        session_timeout_ms=10_000,
        rebalance_timeout_ms=20_000,
        protocol_type="consumer",
        protocols=(("range", b"%d" % number),),
    )


async def acquire(broker: Broker, count: int) -> list[tuple[int, int, int]]:
    """Acquire records for the share group's member, as first offset, last offset, and delivery count."""
    shard = await ready(lambda: broker.share_groups.shard_of(SHARERS))
    limits = FetchLimits(records_max=count, bytes_max=10_000, wait_ms=0)
    wanted = ShareFetchPartition("queue", b"", 0)
    lease = Lease(broker.admission.rooms[CallClass.CLIENT].response_bytes)
    try:
        shard.heartbeat(SHARERS, ShareHeartbeat(member_id="m", member_epoch=0, topics=frozenset(["queue"])))
        (fetched,) = await broker.share_groups.fetch(SHARERS, "m", [wanted], limits, lease)
    finally:
        lease.release()
    if fetched.error is not None:
        raise fetched.error
    return [(run.first, run.last, run.delivery_count) for run in fetched.acquired]


# --- checking ----------------------------------------------------------------------------------------------------


async def verify(broker: Broker, promises: Promises) -> None:
    """Compare a broker that was opened after a crash with the promises at the crash."""
    for name in PRODUCERS:  # as a new instance does: the open transaction is aborted
        await broker.transactions.init_producer_id(name, None, timeout_ms=TIME_OUT_MS)
    await _verify_transactions(broker, promises)
    for group in (*COMMITTERS, CREW):
        found = await _committed_offset(broker, group, "queue")
        low, high = promises.answered[group], promises.begun[group]
        assert low <= found <= high, f"{group} is at {found}, answered was {low}, begun {high}"
    await _verify_crew(broker, promises)
    await _verify_queue(broker, promises)


async def _committed_offset(broker: Broker, group: str, topic: str) -> int:
    """Return a group's committed offset, or 0 without one."""
    entry = await ready(lambda: broker.groups.find(group))
    if entry is None:
        return 0
    assert not entry.offsets.open_producers
    committed = entry.offsets.get((topic, 0))
    return 0 if committed is None else committed.offset


async def _verify_transactions(broker: Broker, promises: Promises) -> None:
    logs = [served(broker, "orders", number).log for number in (0, 1)]
    assert [log.last_stable_offset for log in logs] == [log.log_end_offset for log in logs]
    seen = [committed_numbers(log) for log in logs]
    assert seen[0] == seen[1], f"half a transaction: {seen}"
    for name in PRODUCERS:
        numbers, outcomes = seen[0].get(name, []), promises.transactions[name]
        assert numbers == sorted(set(numbers)), f"{name}: {numbers}"
        lost = {number for number, outcome in outcomes.items() if outcome == "committed"} - set(numbers)
        assert not lost, f"{name}: {lost} were committed, and are not there: {numbers}"
        invented = [number for number in numbers if outcomes.get(number) not in ("committing", "committed")]
        assert not invented, f"{name}: {invented} were not committed, and are there"
        offset = await _committed_offset(broker, f"of-{name}", "orders")
        assert offset == max(numbers, default=0), f"{name}: the offset is {offset}, the records are {numbers}"


def committed_numbers(log: PartitionLog) -> dict[str, list[int]]:
    """Return the numbers of each transactional id in a partition, as a read_committed reader gets them."""
    open_records: dict[int, list[Record]] = defaultdict(list)
    seen: dict[str, list[int]] = defaultdict(list)
    for data, position, header in batches(log):
        records = list(read_rows(data, position, header))
        if not header.is_control:
            open_records[header.producer_id] += records
            continue
        ended = open_records.pop(header.producer_id, [])
        if read_end_marker(records[0]).type is ControlType.COMMIT:
            for record in ended:
                seen[(record.key or b"").decode()].append(int(record.value or b""))
    assert not open_records
    return seen


async def _verify_crew(broker: Broker, promises: Promises) -> None:
    entry = await ready(lambda: broker.groups.find(CREW))
    generation = 0 if entry is None else entry.group.generation_id
    assert generation >= promises.generation, f"generation {generation}, {promises.generation} was answered"
    if entry is not None and generation == promises.generation > 0:
        assignments = [member.assignment for member in entry.group.members]
        assert assignments == [promises.assignment], f"{assignments}, {promises.assignment!r} was answered"


async def _verify_queue(broker: Broker, promises: Promises) -> None:
    delivered: dict[int, int] = {}
    while runs := await acquire(broker, QUEUED):
        for first, last, count in runs:
            again = delivered.keys() & range(first, last + 1)
            assert not again, f"{again} are given out twice"
            delivered.update(dict.fromkeys(range(first, last + 1), count))
    for offset in range(QUEUED):
        outcome, acquired = promises.ended.get(offset), promises.acquired[offset]
        if offset in delivered:
            assert outcome != "ended", f"record {offset} comes again"
            low, high = promises.released[offset] + 1, acquired + 1
            assert low <= delivered[offset] <= high, f"record {offset}: delivery {delivered[offset]}, {low} to {high}"
        else:
            assert outcome is not None or acquired >= DELIVERIES_MAX, f"record {offset} is lost"
