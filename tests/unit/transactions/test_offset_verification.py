"""Tests of the verification of offsets that are committed in a transaction."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import pytest

from millrace.errors import InvalidTxnStateError
from millrace.protocol import millrace_pb2 as pb
from millrace_broker.api import txn_offset_commit
from millrace_broker.broker import Broker
from millrace_broker.transactions import ProducerIdAndEpoch

from .test_coordinator import at_rest, opened, run


async def _commit(broker: Broker, producer: ProducerIdAndEpoch) -> int:
    """Commit an offset of group ``g`` in the transaction; return the error code."""
    request = pb.TxnOffsetCommitRequest(
        transactional_id="t",
        group_id="g",
        generation_id=-1,
        producer_id=producer.producer_id,
        producer_epoch=producer.epoch,
    )
    request.topics.add(name="orders", partitions=[{"partition": 0, "offset": 42}])
    answer = await txn_offset_commit.handle(broker, request, cast("Any", None))
    return answer.topics[0].partitions[0].error.code


def test_offsets_go_to_the_coordinator_that_was_loaded_again_during_the_verification(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> None:
        async with opened(tmp_path) as broker:
            producer = await broker.transactions.init_producer_id("t", None, timeout_ms=60_000)
            await broker.transactions.add_offsets("t", producer, "g")
            verify = broker.transactions.verify_offsets

            async def overtaken(*args: Any, **options: Any) -> None:
                await verify(*args, **options)
                shards = broker.groups._shards
                shards._role_changed(shards.number_of("g"))

            monkeypatch.setattr(broker.transactions, "verify_offsets", overtaken)
            assert await _commit(broker, producer) == 0
            assert broker.groups.shard_of("g").entries["g"].offsets.open_producers == {producer.producer_id}

    run(scenario)


@pytest.mark.parametrize("committed", [True, False])
def test_offsets_that_come_after_the_end_of_their_transaction_are_not_appended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, committed: bool
) -> None:
    # The producer keeps its epoch, so its next transaction would commit these offsets.
    async def scenario() -> None:
        async with opened(tmp_path) as broker:
            producer = await broker.transactions.init_producer_id("t", None, timeout_ms=60_000)
            await broker.transactions.add_offsets("t", producer, "g")
            verify = broker.transactions.verify_offsets

            async def overtaken(*args: Any, **options: Any) -> None:
                await verify(*args, **options)
                await broker.transactions.end("t", producer, committed=committed, keeps_epoch=True)
                await at_rest(broker, "t")

            monkeypatch.setattr(broker.transactions, "verify_offsets", overtaken)
            with pytest.raises(InvalidTxnStateError, match="ended before these records for __consumer_offsets"):
                await _commit(broker, producer)
            monkeypatch.undo()
            offsets = broker.groups.shard_of("g").entries["g"].offsets
            assert not offsets.open_producers
            await broker.transactions.add_offsets("t", producer, "g")
            assert await _commit(broker, producer) == 0
            await broker.transactions.end("t", producer, committed=True, keeps_epoch=True)
            await at_rest(broker, "t")
            assert offsets.committed["orders", 0].offset == 42

    run(scenario)
