"""Tests of idempotent and transactional batches against Kafka's ``ProducerAppendInfo``."""

from __future__ import annotations

import base64
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from millrace.config.topic import TopicConfig
from millrace.errors import (
    InvalidProducerEpochError,
    InvalidTxnStateError,
    MillraceError,
    OutOfOrderSequenceError,
    TransactionCoordinatorFencedError,
)
from millrace.records import BatchHeader, Record, attributes_of, build_rows_batch
from millrace_broker.log import OsFiles, PartitionLog
from millrace_broker.log.producer_snapshots import read_snapshot, write_snapshot
from millrace_broker.log.producer_states import (
    CompletedTransaction,
    Origin,
    ProducedBatch,
    ProducerEntry,
    append_batch,
    end_transaction,
)
from millrace_broker.runtime.clock import SystemClock

ORACLES = Path(os.environ.get("ORACLES") or Path(__file__).parents[1] / "oracles") / "producer_sequence"
ERRORS = {
    "OutOfOrderSequenceException": OutOfOrderSequenceError,
    "InvalidProducerEpochException": InvalidProducerEpochError,
    "InvalidTxnStateException": InvalidTxnStateError,
    "TransactionCoordinatorFencedException": TransactionCoordinatorFencedError,
}
PRODUCER_ID = 4242
Case = dict[str, Any]


def cases(name: str) -> Iterator[Any]:
    for number, case in enumerate(json.loads((ORACLES / f"{name}.json").read_text(encoding="utf-8"))["cases"]):
        yield pytest.param(case, id=f"producer_sequence-{name}-{number}")


@pytest.mark.parametrize("case", list(cases("table")))
def test_each_batch_gets_kafkas_verdict(case: Case) -> None:
    entry = entry_of(case["state"]) if case["state"] else ProducerEntry(producer_id=PRODUCER_ID)
    error = ERRORS.get(case["result"])
    if error is not None:
        with pytest.raises(error):
            judge(entry, case)
        return
    if case["result"] == "DUPLICATE":
        duplicate = entry.find_duplicate(header_of(case["batch"]))
        assert duplicate is not None
        assert duplicate.first_offset == case["duplicateOf"]["firstOffset"]
        assert duplicate.last_offset == case["duplicateOf"]["lastOffset"]
        return
    after, completed = judge(entry, case)
    assert after == entry_of(case["stateAfter"])
    assert completed == completed_of(case.get("completedTxn"))


def judge(entry: ProducerEntry, case: Case) -> tuple[ProducerEntry, CompletedTransaction | None]:
    origin = Origin[case["origin"]]
    if "marker" in case:
        marker = case["marker"]
        return end_transaction(
            entry,
            epoch=marker["producerEpoch"],
            coordinator_epoch=marker["coordinatorEpoch"],
            is_aborted=marker["type"] == "ABORT",
            offset=marker["baseOffset"],
            timestamp_ms=case.get("stateAfter", {}).get("lastTimestamp", 0),
            origin=origin,
        )
    header = header_of(case["batch"], case.get("stateAfter", {}).get("lastTimestamp", 0))
    if origin is Origin.CLIENT:
        assert entry.find_duplicate(header) is None
    return append_batch(entry, header, origin, lowest_sequence=case["verificationLowestSequence"]), None


def header_of(batch: Case, max_timestamp: int = 0) -> BatchHeader:
    return BatchHeader(
        base_offset=batch["baseOffset"],
        batch_length=49,
        partition_leader_epoch=0,
        magic=2,
        crc=0,
        attributes=attributes_of(is_transactional=batch["isTransactional"]),
        last_offset_delta=batch["count"] - 1,
        base_timestamp=0,
        max_timestamp=max_timestamp,
        producer_id=PRODUCER_ID,
        producer_epoch=batch["producerEpoch"],
        base_sequence=batch["baseSequence"],
        count=batch["count"],
    )


def entry_of(state: Case) -> ProducerEntry:
    return ProducerEntry(
        producer_id=state["producerId"],
        epoch=state["producerEpoch"],
        coordinator_epoch=state["coordinatorEpoch"],
        last_timestamp_ms=state["lastTimestamp"],
        open_transaction_offset=state["currentTxnFirstOffset"],
        batches=tuple(
            ProducedBatch(
                last_sequence=batch["lastSeq"],
                last_offset=batch["lastOffset"],
                offset_delta=batch["lastOffset"] - batch["firstOffset"],
                timestamp_ms=batch["timestamp"],
            )
            for batch in state["batches"]
        ),
    )


def completed_of(transaction: Case | None) -> CompletedTransaction | None:
    if transaction is None:
        return None
    return CompletedTransaction(
        producer_id=PRODUCER_ID,
        first_offset=transaction["firstOffset"],
        last_offset=transaction["lastOffset"],
        is_aborted=transaction["isAborted"],
    )


@pytest.mark.parametrize("case", list(cases("logs")))
def test_a_snapshot_file_of_kafka_is_read_and_written_alike(case: Case) -> None:
    snapshot = base64.b64decode(case["snapshotFile"])
    entries = read_snapshot(snapshot)
    expected = [entry_of(as_in_a_snapshot(state)) for state in case["producersAfter"]]
    assert sorted(entries, key=lambda entry: entry.producer_id) == expected
    assert write_snapshot(entries) == snapshot


def as_in_a_snapshot(state: Case) -> Case:
    """Return the last batch with the producer's timestamp, which may be that of a later transaction marker."""
    return state | {"batches": [batch | {"timestamp": state["lastTimestamp"]} for batch in state["batches"][-1:]]}


def plain_logs() -> list[Any]:
    return [
        param
        for param in cases("logs")
        if all(operation["op"] == "append" and not operation["isTransactional"] for operation in param.values[0]["ops"])
    ]


@pytest.mark.parametrize("case", plain_logs())
def test_appends_to_a_log_give_kafkas_results(case: Case, tmp_path: Path) -> None:
    log = PartitionLog(
        topic="t",
        topic_id=UUID(int=1),
        partition=0,
        directory=tmp_path,
        config=TopicConfig(),
        files=OsFiles(),
        clock=SystemClock(),
    )
    for operation in case["ops"]:
        batch = batch_of(operation)
        error = ERRORS.get(operation["result"])
        if error is not None:
            with pytest.raises(error):
                log.append(batch)
        else:
            result = log.append(batch)
            assert (result.base_offset, result.last_offset) == (operation["firstOffset"], operation["lastOffset"])
            assert result.is_duplicate == (operation["result"] == "DUPLICATE")
        assert log.log_end_offset == operation["logEndOffset"]
    assert list(log.producers) == [entry_of(state) for state in case["producersAfter"]]


def batch_of(operation: Case) -> bytes:
    return build_rows_batch(
        [Record(key=None, value=b"v", timestamp_ms=operation["timestamp"]) for _ in range(operation["count"])],
        producer_id=operation["producerId"],
        producer_epoch=operation["producerEpoch"],
        base_sequence=operation["baseSequence"],
    )


def test_some_logs_hold_no_transactions() -> None:
    # The test above would pass without any check if the cases changed their form.
    assert plain_logs()
    assert issubclass(InvalidTxnStateError, MillraceError)
