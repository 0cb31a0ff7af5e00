"""Tests of transactional ids and external commits as records."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.coordinator_records import (
    ExternalCommitKey,
    TransactionLogKey,
    TransactionLogValue,
    TransactionPartitions,
    TransactionState,
    UnknownKey,
    read_external_commit,
    read_transaction_key,
    read_transaction_value,
    write_versioned,
)
from millrace.errors import InvalidRecordError
from millrace_broker.coordinators import StateRecord
from millrace_broker.transactions import states
from millrace_broker.transactions.metadata import (
    EPOCH_MAX,
    LAST_EPOCH,
    ExternalCommit,
    ProducerIdAndEpoch,
    TransactionMetadata,
    transaction_of,
)
from millrace_broker.transactions.state_manager import StateChange, TransactionStateManager

PERSISTENT = [state for state in TransactionState if state.value < TransactionState.DEAD]


@st.composite
def transactions(draw: st.DrawFn) -> TransactionMetadata:
    state = draw(st.sampled_from(PERSISTENT))
    partitions = draw(st.frozensets(st.tuples(st.text(min_size=1, max_size=5), st.integers(0, 9)), max_size=5))
    return TransactionMetadata(
        transactional_id=draw(st.text(min_size=1, max_size=9)),
        producer_id=draw(st.integers(0, 2**63 - 1)),
        epoch=draw(st.integers(1, LAST_EPOCH)),
        timeout_ms=draw(st.integers(1, 2**31 - 1)),
        updated_ms=draw(st.integers(0, 2**62)),
        previous_producer_id=draw(st.integers(-1, 2**62)),
        next_producer_id=draw(st.integers(-1, 2**62)),
        state=state,
        partitions=frozenset() if state is TransactionState.EMPTY else partitions,
        started_ms=draw(st.integers(-1, 2**62)),
        external_id=draw(st.text(max_size=5)),
    )


def read(record: StateRecord) -> TransactionMetadata:
    key = read_transaction_key(record.key)
    assert isinstance(key, TransactionLogKey)
    assert record.value is not None
    return transaction_of(key.transactional_id, read_transaction_value(record.value))


@given(transactions())
def test_metadata_survives_a_round_trip(transaction: TransactionMetadata) -> None:
    again = read(transaction.record())
    has_ended = transaction.state not in (TransactionState.EMPTY, TransactionState.ONGOING)
    assert again.last_epoch == (transaction.epoch - 1 if has_ended else -1)
    assert {**_fields(again), "last_epoch": -1} == {**_fields(transaction), "last_epoch": -1}


def _fields(transaction: TransactionMetadata) -> dict[str, object]:
    return {name: getattr(transaction, name) for name in TransactionMetadata.__slots__}


def test_the_previous_epoch_is_derived_from_a_stored_record() -> None:
    base = TransactionMetadata(transactional_id="t", producer_id=1, epoch=5, timeout_ms=1, updated_ms=0)
    ongoing = states.add_partitions(base, base.producer, [("a", 0)], 0)
    assert ongoing is not None
    fenced_last = TransactionMetadata(
        transactional_id="t",
        producer_id=1,
        epoch=EPOCH_MAX,
        timeout_ms=1,
        updated_ms=0,
        state=TransactionState.PREPARE_ABORT,
    )
    assert read(fenced_last.record()).last_epoch == -1, "the epoch was raised to fence the producer"
    rotating = states.end(
        TransactionMetadata(
            transactional_id="t",
            producer_id=1,
            epoch=LAST_EPOCH,
            timeout_ms=1,
            updated_ms=0,
            state=TransactionState.ONGOING,
        ),
        ProducerIdAndEpoch(1, LAST_EPOCH),
        committed=True,
        new_producer_id=9,
        now_ms=0,
    )
    assert rotating is not None
    for known in (rotating, states.complete(rotating, 0)):
        assert read(known.record()).last_epoch == LAST_EPOCH


@pytest.mark.parametrize("state", PERSISTENT)
def test_a_transaction_is_open_until_its_markers_are_written(state: TransactionState) -> None:
    transaction = TransactionMetadata(
        transactional_id="t", producer_id=1, epoch=5, timeout_ms=1, updated_ms=0, state=state
    )
    assert transaction.is_open is (
        state in (TransactionState.ONGOING, TransactionState.PREPARE_COMMIT, TransactionState.PREPARE_ABORT)
    )
    assert transaction.is_committed is (state in (TransactionState.PREPARE_COMMIT, TransactionState.COMPLETE_COMMIT))


def test_records_of_kafkas_older_transaction_versions_are_read() -> None:
    value = TransactionLogValue(
        producer_id=1,
        producer_epoch=4,
        transaction_timeout_ms=1000,
        transaction_status=TransactionState.PREPARE_COMMIT,
        transaction_partitions=(TransactionPartitions(topic="a", partition_ids=(2, 0)),),
        transaction_last_update_timestamp_ms=7,
        transaction_start_timestamp_ms=6,
    )
    found = transaction_of("t", read_transaction_value(write_versioned(value, 0)))
    assert (found.epoch, found.last_epoch, found.version) == (4, -1, 0)
    assert found.partitions == {("a", 0), ("a", 2)}


def test_a_damaged_external_id_is_refused() -> None:
    value = TransactionLogValue(
        producer_id=1,
        producer_epoch=4,
        transaction_timeout_ms=1000,
        transaction_status=TransactionState.EMPTY,
        transaction_partitions=None,
        transaction_last_update_timestamp_ms=7,
        transaction_start_timestamp_ms=6,
        unknown_tagged_fields=((1000, b"\xff"),),
    )
    with pytest.raises(InvalidRecordError, match="is not UTF-8"):
        transaction_of("t", value)


def test_an_external_commit_is_a_record_that_kafka_passes_over() -> None:
    commit = ExternalCommit(external_id="query", external_epoch=2**40, committed_ms=5)
    record = commit.record()
    assert int.from_bytes(record.key[:2]) == 1000, "Kafka knows version 0 only"
    assert read_transaction_key(record.key) == ExternalCommitKey(external_id="query")
    assert record.value is not None
    assert read_external_commit(record.value).external_epoch == 2**40
    assert isinstance(read_transaction_key((7).to_bytes(2) + b"x"), UnknownKey)


def test_a_table_is_what_its_log_says() -> None:
    manager = TransactionStateManager()
    commit = ExternalCommit(external_id="query", external_epoch=3, committed_ms=5)
    one = TransactionMetadata(transactional_id="one", producer_id=1, epoch=1, timeout_ms=1, updated_ms=0)
    other = TransactionMetadata(transactional_id="other", producer_id=2, epoch=1, timeout_ms=1, updated_ms=0)
    for record in StateChange((one, other), commit=commit).records():
        manager.replay(record)
    for record in StateChange(forgotten=("one",)).records():
        manager.replay(record)
    manager.replay(StateRecord((7).to_bytes(2) + b"x", b"of a kind that is not known"))
    assert list(manager) == [other]
    assert manager.last_commit("query") == commit
    manager.replay(StateRecord(commit.record().key, None))
    assert manager.last_commit("query") is None
