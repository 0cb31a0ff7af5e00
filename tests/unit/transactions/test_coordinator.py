"""Tests of the transaction coordinator on a real log.

The tests cover timeouts, crashes and failures, without the network.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from millrace.config.broker import BrokerConfig
from millrace.config.listeners import Listener
from millrace.coordinator_records import OFFSETS_TOPIC, TransactionState
from millrace.errors import (
    ConcurrentTransactionsError,
    InvalidProducerIdMappingError,
    InvalidTxnStateError,
    MillraceError,
    StorageError,
    TopicExistsError,
    UnknownTopicOrPartitionError,
)
from millrace.records import Record, build_rows_batch
from millrace_broker.broker import Broker
from millrace_broker.coordinators import StateLog, StateRecord
from millrace_broker.log import ProducedBatches
from millrace_broker.metadata import TopicSpec
from millrace_broker.opening import open_broker
from millrace_broker.transactions import (
    ProducerIdAndEpoch,
    TransactionalProducer,
    TransactionMarker,
    TransactionMetadata,
)
from millrace_broker.transactions.markers import Markers as BrokerMarkers

from ...integration.waiting import STALL_S, eventually_async

PartitionKey = tuple[str, int]
DAY_MS = 24 * 60 * 60 * 1000


class ManualClock:
    """A clock that stands still until a test advances it."""

    def __init__(self) -> None:
        self.ms = 1_700_000_000_000

    def now_ms(self) -> int:
        return self.ms

    def monotonic(self) -> float:
        return self.ms / 1000


@asynccontextmanager
async def opened(
    directory: Path, clock: ManualClock | None = None, *, offsets_partitions: int = 50, verifies: bool = True
) -> AsyncIterator[Broker]:
    values = {
        "log.dirs": str(directory),
        "transaction.state.log.num.partitions": "2",
        "offsets.topic.num.partitions": str(offsets_partitions),
        "transaction.partition.verification.enable": str(verifies).lower(),
    }
    broker = await open_broker(
        BrokerConfig.load(values), endpoints={"PLAINTEXT": Listener("127.0.0.1", 1)}, clock=clock
    )
    await broker.announce()
    try:
        if "orders" not in broker.catalog.topics:
            await broker.executors.administer(broker.changes.create, TopicSpec(name="orders", partitions=3, configs={}))
            await broker.member.topics.led(["orders"], round(STALL_S * 1000))
        yield broker
    finally:
        await broker.close()


def run(scenario: Callable[[], Awaitable[None]]) -> None:
    asyncio.run(scenario())


async def at_rest(broker: Broker, name: str) -> TransactionMetadata:
    found: list[TransactionMetadata] = []

    def is_at_rest() -> bool:
        try:
            found[:] = [broker.transactions.describe(name)]
        except MillraceError:
            return False
        return found[0].state in (TransactionState.COMPLETE_COMMIT, TransactionState.COMPLETE_ABORT)

    await eventually_async(is_at_rest)
    return found[0]


async def begin(
    broker: Broker, name: str, *partitions: int, key: str = "", timeout_ms: int = 60_000
) -> ProducerIdAndEpoch:
    """Begin a transaction and write to its partitions."""
    producer = await broker.transactions.init_producer_id(name, None, timeout_ms=timeout_ms, coordinator_key=key)
    keys = [("orders", number) for number in partitions]
    await broker.transactions.add_partitions(name, producer, keys, coordinator_key=key)
    for number in partitions:
        await write(broker, producer, number)
    return producer


async def fail_to_append(log: StateLog, records: Sequence[StateRecord]) -> int:
    """Stand for ``StateLog.append`` on a full disk."""
    await asyncio.sleep(0)
    raise StorageError("no room")


async def write(broker: Broker, producer: ProducerIdAndEpoch, number: int) -> None:
    batch = build_rows_batch(
        [Record(key=None, value=b"v", timestamp_ms=broker.clock.now_ms())],
        producer_id=producer.producer_id,
        producer_epoch=producer.epoch,
        base_sequence=0,
        is_transactional=True,
    )
    partition = partition_of(broker, number)
    await broker.appends.append(partition, ProducedBatches(batch, partition.log.config, in_transaction=True))


def partition_of(broker: Broker, number: int) -> Any:
    return broker.partitions.led(broker.partitions.topic("orders"), number)


def is_stable(broker: Broker, *numbers: int) -> bool:
    logs = [partition_of(broker, number).log for number in numbers]
    return all(log.last_stable_offset == log.log_end_offset for log in logs)


def aborted_in(broker: Broker, number: int) -> int:
    log = partition_of(broker, number).log
    return len(log.aborted_transactions(0, log.log_end_offset))


class Markers:
    """Transaction markers that fail or hang on demand."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.written: list[PartitionKey] = []
        self.failures: list[MillraceError] = []
        self.held_from: int | None = None
        write = BrokerMarkers.write

        async def intercepted(markers: BrokerMarkers, partition: PartitionKey, marker: TransactionMarker) -> None:
            if self.held_from is not None and len(self.written) >= self.held_from:
                await asyncio.Event().wait()
            if self.failures:
                raise self.failures.pop()
            self.written.append(partition)
            await write(markers, partition, marker)

        monkeypatch.setattr(BrokerMarkers, "write", intercepted)


@pytest.fixture
def markers(monkeypatch: pytest.MonkeyPatch) -> Markers:
    return Markers(monkeypatch)


# --- time ------------------------------------------------------------------------------------------------------------


def test_a_transaction_is_aborted_when_its_time_is_up_and_not_before(tmp_path: Path) -> None:
    async def scenario() -> None:
        clock = ManualClock()
        async with opened(tmp_path, clock) as broker:
            producer = await begin(broker, "slow", 0, timeout_ms=60_000)
            clock.ms += 40_000
            await broker.transactions.add_partitions("slow", producer, [("orders", 1)])
            clock.ms += 19_990
            broker.timer.turn()
            await asyncio.sleep(0)
            assert broker.transactions.describe("slow").state is TransactionState.ONGOING
            clock.ms += 20
            broker.timer.turn()
            after = await at_rest(broker, "slow")
            assert (after.state, after.epoch) == (TransactionState.COMPLETE_ABORT, producer.epoch + 1)
            assert is_stable(broker, 0, 1)
            assert aborted_in(broker, 0) == 1
            with pytest.raises(InvalidTxnStateError):
                await broker.transactions.end("slow", producer, committed=True)
            assert await broker.transactions.end("slow", producer, committed=False) == after.producer
            assert broker.statistics().transactions.ended == {"timed out": 1, "aborted": 1}

    run(scenario)


def test_a_transaction_that_was_open_at_a_restart_still_has_its_time(tmp_path: Path) -> None:
    async def scenario() -> None:
        clock = ManualClock()
        async with opened(tmp_path, clock) as broker:
            producer = await begin(broker, "open", 0)
        async with opened(tmp_path, clock) as broker:
            clock.ms += 59_000
            assert broker.timer.turn() == 0
            assert await broker.transactions.end("open", producer, committed=True) == ProducerIdAndEpoch(
                producer.producer_id, producer.epoch + 1
            )
            await begin(broker, "open", 0)
        clock.ms += 61_000
        async with opened(tmp_path, clock) as broker:
            clock.ms += 2_000
            await eventually_async(lambda: len(broker.timer) > 0)

            def is_aborted() -> bool:
                broker.timer.turn()
                return broker.transactions.describe("open").state is TransactionState.COMPLETE_ABORT

            await eventually_async(lambda: not broker.transactions._shards.is_loading)
            await eventually_async(is_aborted)

    run(scenario)


def test_ids_that_are_not_used_are_forgotten(tmp_path: Path) -> None:
    async def scenario() -> None:
        clock = ManualClock()
        async with opened(tmp_path, clock) as broker:
            gone = await begin(broker, "gone", 0)
            await broker.transactions.end("gone", gone, committed=True)
            await at_rest(broker, "gone")
            clock.ms += 6 * DAY_MS
            await broker.transactions.init_producer_id("kept", None, timeout_ms=1000)
            clock.ms += DAY_MS + 1
            broker.timer.turn()
            await eventually_async(
                lambda: {each.transactional_id for each in broker.transactions.transactions()} == {"kept"}
            )
            with pytest.raises(InvalidProducerIdMappingError):
                await broker.transactions.end("gone", gone, committed=True)
        async with opened(tmp_path, clock) as broker:
            await eventually_async(lambda: not broker.transactions._shards.is_loading)
            assert {each.transactional_id for each in broker.transactions.transactions()} == {"kept"}

    run(scenario)


# --- death -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("markers_before", [0, 1])
@pytest.mark.parametrize("committed", [True, False])
def test_decided_transactions_are_completed_everywhere_after_a_restart(
    tmp_path: Path, markers: Markers, committed: bool, markers_before: int
) -> None:
    async def scenario() -> None:
        markers.held_from = markers_before
        async with opened(tmp_path) as broker:
            producer = await begin(broker, "decided", 0, 1, 2)
            after = await broker.transactions.end("decided", producer, committed=committed)
            await eventually_async(lambda: len(markers.written) == markers_before)
            assert not is_stable(broker, 0, 1, 2)
            with pytest.raises(ConcurrentTransactionsError):
                await broker.transactions.end("decided", producer, committed=committed)
        markers.held_from = None
        async with opened(tmp_path) as broker:
            completed = await at_rest(broker, "decided")
            assert (completed.is_committed, completed.producer) == (committed, after)
            assert is_stable(broker, 0, 1, 2)
            assert [aborted_in(broker, number) for number in range(3)] == [0 if committed else 1] * 3
            assert await broker.transactions.end("decided", producer, committed=committed) == after

    run(scenario)


def test_producers_committed_together_are_ended_on_all_partitions_after_a_restart(
    tmp_path: Path, markers: Markers
) -> None:
    async def scenario() -> None:
        markers.held_from = 1
        async with opened(tmp_path) as broker:
            members = [
                TransactionalProducer(f"task-{n}", await begin(broker, f"task-{n}", n, key="query")) for n in range(3)
            ]
            decision = await broker.transactions.commit_transactions("query", 7, members[:2], members[2:])
            assert not decision.was_committed_before
            await eventually_async(lambda: len(markers.written) == 1)
        markers.held_from = None
        async with opened(tmp_path) as broker:
            for number in range(3):
                assert (await at_rest(broker, f"task-{number}")).is_committed is (number < 2)
            assert is_stable(broker, 0, 1, 2)
            assert [aborted_in(broker, number) for number in range(3)] == [0, 0, 1]
            decision = await broker.transactions.commit_transactions("query", 7, members[:2], members[2:])
            assert (decision.was_committed_before, decision.last_committed_epoch) == (True, 7)
            assert [aborted_in(broker, number) for number in range(3)] == [0, 0, 1], "no transaction was aborted"

    run(scenario)


def test_a_call_that_is_cancelled_does_not_undo_what_it_began(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with opened(tmp_path) as broker:
            producer = await begin(broker, "left alone", 0)
            call = asyncio.create_task(broker.transactions.end("left alone", producer, committed=True))
            await asyncio.sleep(0)
            call.cancel()
            assert (await at_rest(broker, "left alone")).is_committed

    run(scenario)


def test_partitions_that_are_added_at_the_same_time_share_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> None:
        append, count = StateLog.append, 0

        async def counted(log: StateLog, records: Sequence[StateRecord]) -> int:
            nonlocal count
            count += 1
            return await append(log, records)

        async with opened(tmp_path) as broker:
            producer = await broker.transactions.init_producer_id("wide", None, timeout_ms=60_000)
            monkeypatch.setattr(StateLog, "append", counted)
            keys = [("orders", number) for number in range(40)]
            await asyncio.gather(*(broker.transactions.join("wide", producer, key) for key in keys))
            assert broker.transactions.describe("wide").partitions == frozenset(keys)
            assert count == 2, "the first one, and all that came while it was written"

    run(scenario)


def test_calls_that_share_a_change_share_its_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        append = StateLog.append
        async with opened(tmp_path) as broker:
            producer = await broker.transactions.init_producer_id("wide", None, timeout_ms=60_000)
            monkeypatch.setattr(StateLog, "append", fail_to_append)
            keys = [("orders", number) for number in range(5)]
            joins = [broker.transactions.join("wide", producer, key) for key in keys]
            errors = await asyncio.gather(*joins, return_exceptions=True)
            assert [type(each) for each in errors] == [StorageError] * 5
            monkeypatch.setattr(StateLog, "append", append)
            await broker.transactions.join("wide", producer, keys[0])
            assert broker.transactions.describe("wide").partitions == {keys[0]}

    run(scenario)


# --- failures --------------------------------------------------------------------------------------------------------


def test_a_change_that_cannot_be_written_has_no_effect(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        append = StateLog.append
        async with opened(tmp_path) as broker:
            producer = await begin(broker, "unlucky", 0)
            monkeypatch.setattr(StateLog, "append", fail_to_append)
            with pytest.raises(StorageError, match="no room"):
                await broker.transactions.end("unlucky", producer, committed=True)
            with pytest.raises(StorageError, match="no room"):
                await broker.transactions.commit_transactions("other", 1, [], [])
            assert broker.transactions.describe("unlucky").state is TransactionState.ONGOING
            monkeypatch.setattr(StateLog, "append", append)
            decision = await broker.transactions.commit_transactions("other", 1, [], [])
            assert not decision.was_committed_before
            await broker.transactions.end("unlucky", producer, committed=True)
            assert (await at_rest(broker, "unlucky")).is_committed

    run(scenario)


def test_markers_are_written_until_they_are_there(tmp_path: Path, markers: Markers) -> None:
    async def scenario() -> None:
        async with opened(tmp_path) as broker:
            producer = await begin(broker, "patient", 0, 1)
            markers.failures = [StorageError("no room"), StorageError("no room")]
            await broker.transactions.end("patient", producer, committed=True)
            assert (await at_rest(broker, "patient")).is_committed
            assert sorted(markers.written) == [("orders", 0), ("orders", 1)]
            assert is_stable(broker, 0, 1)

    run(scenario)


def test_a_transaction_ends_although_one_of_its_topics_is_gone(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with opened(tmp_path) as broker:
            await broker.executors.administer(
                broker.changes.create, TopicSpec(name="short-lived", partitions=1, configs={})
            )
            producer = await begin(broker, "widow", 0)
            await broker.transactions.add_partitions("widow", producer, [("short-lived", 0)])
            await broker.executors.administer(broker.changes.delete, "short-lived")
            await broker.transactions.end("widow", producer, committed=True)
            assert (await at_rest(broker, "widow")).is_committed
            assert is_stable(broker, 0)

    run(scenario)


def test_a_transaction_ends_although_its_topic_was_created_again_with_fewer_partitions(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with opened(tmp_path) as broker:

            async def is_created(partitions: int) -> bool:
                spec = TopicSpec(name="reborn", partitions=partitions, configs={})
                with suppress(TopicExistsError):  # it is being deleted
                    await broker.executors.administer(broker.changes.create, spec)
                    return True
                return False

            assert await is_created(partitions=2)
            producer = await begin(broker, "widow", 0)
            await broker.transactions.add_partitions("widow", producer, [("reborn", 1)])
            await broker.executors.administer(broker.changes.delete, "reborn")
            await eventually_async(lambda: is_created(partitions=1))
            with pytest.raises(UnknownTopicOrPartitionError, match="has partitions 0 to 0, not 1"):
                broker.partitions.leader_elsewhere(("reborn", 1))
            await broker.transactions.end("widow", producer, committed=True)
            assert (await at_rest(broker, "widow")).is_committed
            assert is_stable(broker, 0)

    run(scenario)


# --- many ------------------------------------------------------------------------------------------------------------


def test_a_hundred_concurrent_transactions_are_all_decided(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with opened(tmp_path) as broker:

            async def begins(name: str, producer: ProducerIdAndEpoch, partition: int) -> None:
                while True:
                    with suppress(ConcurrentTransactionsError):  # on a busy machine the last one takes long
                        return await broker.transactions.add_partitions(name, producer, [("orders", partition)])

            async def one(number: int) -> None:
                name = f"producer-{number}"
                producer = await begin(broker, name, number % 3)
                for step in range(3):
                    producer = await broker.transactions.end(name, producer, committed=(number + step) % 2 == 0)
                    await begins(name, producer, step)
                    await write(broker, producer, step)
                await broker.transactions.end(name, producer, committed=True)

            # The first call creates the topic. Until its partitions have leaders, others would have to try again.
            await broker.transactions.init_producer_id("first", None, timeout_ms=60_000)
            await broker.member.topics.led(["__transaction_state"], round(STALL_S * 1000))
            await asyncio.gather(*(one(number) for number in range(100)))
            for number in range(100):
                await at_rest(broker, f"producer-{number}")
            assert is_stable(broker, 0, 1, 2)
            ended = broker.statistics().transactions.ended
            assert sum(ended.values()) == 400
            assert broker.statistics().transactions.waiting.delayed == 0

    run(scenario)


def test_offsets_of_a_group_are_in_the_partition_of_the_group(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with opened(tmp_path, offsets_partitions=4) as broker:
            producer = await broker.transactions.init_producer_id("consumer", None, timeout_ms=1000)
            await broker.transactions.add_offsets("consumer", producer, "group")
            (partition,) = broker.transactions.describe("consumer").partitions
            assert partition[0] == OFFSETS_TOPIC
            await broker.transactions.verify_offsets("consumer", producer, "group")

    run(scenario)
