"""State of a transactional id, and its records in ``__transaction_state`` (Kafka's ``TransactionMetadata``)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, NamedTuple

from millrace.coordinator_records import (
    ExternalCommitKey,
    ExternalCommitValue,
    TransactionLogKey,
    TransactionLogValue,
    TransactionPartitions,
    TransactionState,
    external_id_field,
    external_id_of,
    write_key,
    write_versioned,
)
from millrace.partitions import numbers_by_topic
from millrace.records import NO_PRODUCER_EPOCH, NO_PRODUCER_ID
from millrace_broker.coordinators import StateRecord
from millrace_broker.purgatory import PartitionKey

EPOCH_MAX: Final = 2**15 - 1
"""The greatest epoch. No producer gets it, so that each epoch can be raised once more to fence its producer."""
LAST_EPOCH: Final = EPOCH_MAX - 1
"""The last epoch of a producer id. The next transaction has another producer id."""

NEVER_MS: Final = -1
TV_0: Final = 0
"""Kafka's transaction version 0, in which a producer keeps its epoch at the end of a transaction."""
TV_2: Final = 2
"""Kafka's transaction version 2, in which each end of a transaction raises the epoch (KIP-890)."""

_VALUE_VERSION: Final = 1

OPEN: Final = frozenset((TransactionState.ONGOING,))
PREPARED: Final = frozenset((TransactionState.PREPARE_COMMIT, TransactionState.PREPARE_ABORT))
"""States of a decided transaction whose markers are being written."""
IDLE: Final = frozenset((TransactionState.EMPTY, TransactionState.COMPLETE_COMMIT, TransactionState.COMPLETE_ABORT))


class ProducerIdAndEpoch(NamedTuple):
    """Producer id and epoch of a transactional id's producer (Kafka's class)."""

    producer_id: int
    epoch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionMetadata:
    """State of a transactional id (Kafka's class).

    ``last_epoch`` is the epoch before ``epoch`` if the same producer may repeat a request with it. It is -1 after the
    epoch was raised to fence another producer. ``previous_producer_id`` is the producer id before ``producer_id``.
    ``next_producer_id`` is set from the end of the transaction that uses the last epoch until its completion.
    ``version`` is Kafka's transaction version of the last end. ``external_id`` is the external id under which the
    coordinator has assigned the transactional id, "" if a client chose it. Times are the broker's, in ms;
    ``started_ms`` is -1 before the first transaction.
    """

    transactional_id: str
    producer_id: int
    epoch: int
    timeout_ms: int
    updated_ms: int
    last_epoch: int = NO_PRODUCER_EPOCH
    previous_producer_id: int = NO_PRODUCER_ID
    next_producer_id: int = NO_PRODUCER_ID
    state: TransactionState = TransactionState.EMPTY
    partitions: frozenset[PartitionKey] = frozenset()
    started_ms: int = NEVER_MS
    version: int = TV_2
    external_id: str = ""

    @property
    def producer(self) -> ProducerIdAndEpoch:
        """The producer id and epoch that may continue."""
        return ProducerIdAndEpoch(self.producer_id, self.epoch)

    @property
    def has_epochs_left(self) -> bool:
        """True if the epoch can be raised for the same producer id."""
        return self.epoch < LAST_EPOCH

    @property
    def is_open(self) -> bool:
        """True if a transaction has begun and some of its markers may be missing."""
        return self.state in OPEN or self.state in PREPARED

    @property
    def is_committed(self) -> bool:
        """True if the last transaction is committed, or its commit is prepared."""
        return self.state in (TransactionState.PREPARE_COMMIT, TransactionState.COMPLETE_COMMIT)

    def record(self) -> StateRecord:
        """Return the record of this state."""
        partitions = tuple(
            TransactionPartitions(topic=topic, partition_ids=numbers)
            for topic, numbers in numbers_by_topic(sorted(self.partitions)).items()
        )
        value = TransactionLogValue(
            producer_id=self.producer_id,
            previous_producer_id=self.previous_producer_id,
            next_producer_id=self.next_producer_id,
            producer_epoch=self.epoch,
            transaction_timeout_ms=self.timeout_ms,
            transaction_status=self.state,
            transaction_partitions=None if self.state is TransactionState.EMPTY else partitions,
            transaction_last_update_timestamp_ms=self.updated_ms,
            transaction_start_timestamp_ms=self.started_ms,
            client_transaction_version=self.version,
            unknown_tagged_fields=external_id_field(self.external_id),
        )
        return StateRecord(key_of(self.transactional_id), write_versioned(value, _VALUE_VERSION))


@dataclass(frozen=True, slots=True, kw_only=True)
class ExternalCommit:
    """State of an external id, under which several producers are committed together.

    ``external_epoch`` is the last committed epoch. ``begun_epoch`` is the last epoch that an attempt has begun.
    ``attempt`` is the attempt that may commit it. ``former_attempts`` are the fenced attempts of the same epoch, the
    latest first. ``owner`` is the only user of the id, if one was named. Times are in ms, and -1 means never; a
    ``retention_ms`` of 0 means for ever.
    """

    external_id: str
    external_epoch: int = -1
    committed_ms: int = -1
    owner: str = ""
    begun_epoch: int = -1
    attempt: str = ""
    former_attempts: tuple[str, ...] = ()
    updated_ms: int = -1
    retention_ms: int = 0

    def record(self) -> StateRecord:
        """Return the record of this state."""
        value = ExternalCommitValue(
            external_epoch=self.external_epoch,
            commit_timestamp_ms=self.committed_ms,
            owner=self.owner,
            begun_epoch=self.begun_epoch,
            attempt=self.attempt,
            former_attempts=self.former_attempts,
            last_update_timestamp_ms=self.updated_ms,
            retention_ms=self.retention_ms,
        )
        return StateRecord(commit_key_of(self.external_id), write_versioned(value, ExternalCommitValue.VERSION_MAX))


def commit_of(external_id: str, value: ExternalCommitValue) -> ExternalCommit:
    """Return the state that a record of an external id holds."""
    return ExternalCommit(
        external_id=external_id,
        external_epoch=value.external_epoch,
        committed_ms=value.commit_timestamp_ms,
        owner=value.owner,
        begun_epoch=value.begun_epoch,
        attempt=value.attempt,
        former_attempts=value.former_attempts,
        updated_ms=value.last_update_timestamp_ms,
        retention_ms=value.retention_ms,
    )


def commit_key_of(external_id: str) -> bytes:
    """Return the key of an external id's records."""
    return write_key(ExternalCommitKey(external_id=external_id))


def numbered_id(external_id: str, number: int) -> str:
    """Return the transactional id of the producer with this number under an external id."""
    return f"{external_id}-{number}"


def key_of(transactional_id: str) -> bytes:
    """Return the key of a transactional id's records."""
    return write_key(TransactionLogKey(transactional_id=transactional_id))


def transaction_of(transactional_id: str, value: TransactionLogValue) -> TransactionMetadata:
    """Return the state that a record of a transactional id holds.

    Records do not hold the last epoch. If the end of a transaction has raised the epoch, the last epoch follows from
    other fields. A record does not say whether that end has fenced the producer. After a restart, a fenced producer may
    therefore learn that its transaction was aborted.
    """
    state = TransactionState(value.transaction_status)
    return TransactionMetadata(
        transactional_id=transactional_id,
        producer_id=value.producer_id,
        epoch=value.producer_epoch,
        last_epoch=_last_epoch(state, value),
        previous_producer_id=value.previous_producer_id,
        next_producer_id=value.next_producer_id,
        timeout_ms=value.transaction_timeout_ms,
        state=state,
        partitions=frozenset(
            (each.topic, number) for each in value.transaction_partitions or () for number in each.partition_ids
        ),
        started_ms=value.transaction_start_timestamp_ms,
        updated_ms=value.transaction_last_update_timestamp_ms,
        version=value.client_transaction_version,
        external_id=external_id_of(value),
    )


def _last_epoch(state: TransactionState, value: TransactionLogValue) -> int:
    if value.client_transaction_version < TV_2 or state in OPEN or state is TransactionState.EMPTY:
        return NO_PRODUCER_EPOCH
    if value.producer_epoch == EPOCH_MAX and value.next_producer_id == NO_PRODUCER_ID:
        return NO_PRODUCER_EPOCH  # the epoch was raised to fence the producer
    return value.producer_epoch - 1 if value.producer_epoch > 0 else LAST_EPOCH


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionMarker:
    """Marker of a transaction (Kafka's ``TxnMarkerEntry``).

    With ``version`` 2 the epoch is greater than the epoch of the transaction's records.
    """

    producer_id: int
    epoch: int
    committed: bool
    coordinator_epoch: int
    version: int = TV_2
