"""Tests of the verification before a transaction's first append (KIP-890)."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast

import pytest

from millrace.errors import (
    BrokerUnavailableError,
    CoordinatorLoadInProgressError,
    CoordinatorNotAvailableError,
    InvalidTxnStateError,
    LeaderNotAvailableError,
    MillraceError,
    NotCoordinatorError,
    NotEnoughReplicasError,
    OutOfOrderSequenceError,
    RequestTimedOutError,
)
from millrace.protocol import millrace_pb2 as pb
from millrace.records import Record, build_rows_batch
from millrace_broker.api import ClientAddress, RequestContext, produce, txn_offset_commit
from millrace_broker.broker import Broker
from millrace_broker.security import ANONYMOUS
from millrace_broker.transactions import ProducerIdAndEpoch

from .test_coordinator import at_rest, is_stable, opened, partition_of, run


def _batch(broker: Broker, producer: ProducerIdAndEpoch, sequence: int = 0) -> bytes:
    batch = build_rows_batch(
        [Record(value=b"v", timestamp_ms=broker.clock.now_ms())],
        producer_id=producer.producer_id,
        producer_epoch=producer.epoch,
        base_sequence=sequence,
        is_transactional=True,
    )
    return bytes(batch)


async def _produce(
    broker: Broker, producer: ProducerIdAndEpoch, *, adds_partitions: bool = False
) -> pb.ProduceResponse.PartitionResult:
    data = pb.ProduceRequest.PartitionData(partition=0, records=_batch(broker, producer))
    request = pb.ProduceRequest(acks=-1, transactional_id="t", timeout_ms=1000, adds_partitions=adds_partitions)
    request.topics.add(name="orders", partitions=[data])
    context = RequestContext("Produce", "L", ANONYMOUS, "", ClientAddress("h", 1), cast("Any", None))
    answer = await produce.handle(broker, request, context)
    return answer.topics[0].partitions[0]


async def _error(broker: Broker, producer: ProducerIdAndEpoch, sequence: int, *, raises_epoch: bool = False) -> int:
    """Append a batch as a Kafka client's, and return the code of its error."""
    data = produce.PartitionAppend("orders", 0, _batch(broker, producer, sequence))
    request = produce.Producing(acks=-1, timeout_ms=1000, transactional_id="t", raises_epoch=raises_epoch)
    await produce.append(broker, request, [data])
    return 0 if data.error is None else data.error.code


@asynccontextmanager
async def _forgotten(directory: Path) -> AsyncIterator[tuple[Broker, ProducerIdAndEpoch]]:
    """Open a broker whose partition has forgotten a producer that keeps its epoch.

    The producer's second transaction is open, and the sequence number of its next record is 1.
    """
    async with opened(directory) as broker:
        producer = await broker.transactions.init_producer_id("t", None, timeout_ms=60_000)
        await broker.transactions.add_partitions("t", producer, [("orders", 0)])
        assert not await _error(broker, producer, 0)
        await broker.transactions.end("t", producer, committed=True, keeps_epoch=True)
        await at_rest(broker, "t")
        log = partition_of(broker, 0).log
        log.tick(producer_expiration_ms=0)
        assert log.find_producer(producer.producer_id) is None
        await broker.transactions.add_partitions("t", producer, [("orders", 0)])
        yield broker, producer


def test_a_producer_that_keeps_its_epoch_counts_on_in_a_partition_that_has_forgotten_it(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with _forgotten(tmp_path) as (broker, producer):
            assert [await _error(broker, producer, sequence) for sequence in (1, 2)] == [0, 0]

    run(scenario)


def test_a_batch_is_refused_after_an_earlier_one_that_could_not_be_verified(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> None:
        async with _forgotten(tmp_path) as (broker, producer):
            with monkeypatch.context() as patch:
                patch.setattr(broker.transactions, "_coordinator_elsewhere", lambda key: 5)
                assert await _error(broker, producer, 1) == NotEnoughReplicasError.code
            assert await _error(broker, producer, 2) == OutOfOrderSequenceError.code
            assert [await _error(broker, producer, sequence) for sequence in (1, 2)] == [0, 0]

    monkeypatch.setattr(produce, "_OVERTAKING_WAIT_S", 0)
    run(scenario)


def test_a_producer_that_raises_its_epoch_begins_with_sequence_number_0(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> None:
        async with _forgotten(tmp_path) as (broker, producer):
            assert await _error(broker, producer, 1, raises_epoch=True) == OutOfOrderSequenceError.code
            assert await _error(broker, producer, 0, raises_epoch=True) == 0

    monkeypatch.setattr(produce, "_OVERTAKING_WAIT_S", 0)
    run(scenario)


@pytest.mark.parametrize("committed", [True, False])
def test_records_that_come_after_the_end_of_their_transaction_are_not_appended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, committed: bool
) -> None:
    # The producer keeps its epoch, so these records look like those of its next transaction.
    async def scenario() -> None:
        async with opened(tmp_path) as broker:
            producer = await broker.transactions.init_producer_id("t", None, timeout_ms=60_000)
            await broker.transactions.add_partitions("t", producer, [("orders", 0)])
            verify = broker.transactions.verify

            async def overtaken(*args: Any, **options: Any) -> None:
                await verify(*args, **options)
                await broker.transactions.end("t", producer, committed=committed, keeps_epoch=True)
                await at_rest(broker, "t")

            monkeypatch.setattr(broker.transactions, "verify", overtaken)
            assert (await _produce(broker, producer)).error.code == InvalidTxnStateError.code
            monkeypatch.undo()
            assert partition_of(broker, 0).log.log_end_offset == 1, "the marker"
            assert is_stable(broker, 0)
            await broker.transactions.add_partitions("t", producer, [("orders", 0)])
            appended = await _produce(broker, producer)
            assert (appended.error.code, appended.base_offset) == (0, 1)
            assert not is_stable(broker, 0), "the producer's next transaction is open"
            await broker.transactions.end("t", producer, committed=True, keeps_epoch=True)
            await at_rest(broker, "t")
            assert is_stable(broker, 0)

    run(scenario)


def test_records_add_their_partition_to_the_transaction_also_without_verification(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with opened(tmp_path, verifies=False) as broker:
            producer = await broker.transactions.init_producer_id("t", None, timeout_ms=60_000)
            assert not (await _produce(broker, producer, adds_partitions=True)).error.code
            assert broker.transactions.describe("t").partitions == {("orders", 0)}
            await broker.transactions.end("t", producer, committed=True)
            await at_rest(broker, "t")
            assert is_stable(broker, 0)

    run(scenario)


@pytest.mark.parametrize(
    "error",
    [
        BrokerUnavailableError,
        RequestTimedOutError,
        LeaderNotAvailableError,
        CoordinatorLoadInProgressError,
        CoordinatorNotAvailableError,
        NotCoordinatorError,
    ],
)
def test_records_whose_coordinator_cannot_be_asked_are_refused_with_an_error_that_producers_retry(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: type[MillraceError]
) -> None:
    async def scenario() -> None:
        async with opened(tmp_path) as broker:
            producer = await broker.transactions.init_producer_id("t", None, timeout_ms=60_000)

            async def fails(*args: Any, **options: Any) -> None:
                raise error("broker 5 does not answer")

            monkeypatch.setattr(broker.transactions, "verify", fails)
            refused = (await _produce(broker, producer)).error
            assert (refused.code, refused.message) == (NotEnoughReplicasError.code, "broker 5 does not answer")

    run(scenario)


@pytest.mark.parametrize("adds_offsets", [False, True])
def test_offsets_whose_coordinator_is_on_a_dead_broker_are_refused_as_while_it_loads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, adds_offsets: bool
) -> None:
    async def scenario() -> None:
        async with opened(tmp_path) as broker:
            producer = await broker.transactions.init_producer_id("t", None, timeout_ms=60_000)
            await broker.transactions.add_offsets("t", producer, "g")
            monkeypatch.setattr(broker.transactions, "_coordinator_elsewhere", lambda key: 5)
            request = pb.TxnOffsetCommitRequest(
                transactional_id="t",
                group_id="g",
                producer_id=producer.producer_id,
                producer_epoch=producer.epoch,
                adds_offsets=adds_offsets,
            )
            with pytest.raises(CoordinatorLoadInProgressError, match="broker 5 is not alive"):
                await txn_offset_commit.handle(broker, request, cast("Any", None))

    run(scenario)
