"""Tests of the verification before a transaction's first append (KIP-890)."""

from __future__ import annotations

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
    RequestTimedOutError,
)
from millrace.protocol import millrace_pb2 as pb
from millrace.records import Record, build_rows_batch
from millrace_broker.api import ClientAddress, RequestContext, produce, txn_offset_commit
from millrace_broker.broker import Broker
from millrace_broker.security import ANONYMOUS
from millrace_broker.transactions import ProducerIdAndEpoch

from .test_coordinator import at_rest, is_stable, opened, partition_of, run


async def _produce(
    broker: Broker, producer: ProducerIdAndEpoch, *, adds_partitions: bool = False
) -> pb.ProduceResponse.PartitionResult:
    batch = build_rows_batch(
        [Record(value=b"v", timestamp_ms=broker.clock.now_ms())],
        producer_id=producer.producer_id,
        producer_epoch=producer.epoch,
        base_sequence=0,
        is_transactional=True,
    )
    data = pb.ProduceRequest.PartitionData(partition=0, records=bytes(batch))
    request = pb.ProduceRequest(acks=-1, transactional_id="t", timeout_ms=1000, adds_partitions=adds_partitions)
    request.topics.add(name="orders", partitions=[data])
    context = RequestContext("Produce", "L", ANONYMOUS, "", ClientAddress("h", 1), cast("Any", None))
    answer = await produce.handle(broker, request, context)
    return answer.topics[0].partitions[0]


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
