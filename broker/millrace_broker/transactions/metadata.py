"""What is known of a transactional id, and how it is written down (Kafka's ``TransactionMetadata``)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, NamedTuple

from millrace.coordinator_records import (
    ExternalCommitKey,
    ExternalCommitValue,
    TransactionLogKey,
    TransactionLogValue,
    TransactionPartitions,
    TransactionState,
    write_versioned,
)
from millrace.records import NO_PRODUCER_EPOCH, NO_PRODUCER_ID
from millrace_broker.coordinators import StateRecord

PartitionKey = tuple[str, int]
"""Topic and partition."""

EPOCH_MAX: Final = 2**15 - 1
"""Never given to a producer: an epoch below it can always be raised once more, to fence its owner."""
LAST_EPOCH: Final = EPOCH_MAX - 1
"""The last epoch that a producer may have; then it goes on with another producer id."""

NEVER_MS: Final = -1
RAISES_EPOCHS: Final = 2
"""Kafka's transaction version in which every end of a transaction raises the epoch (KIP-890)."""

_VALUE_VERSION: Final = 1

OPEN: Final = frozenset((TransactionState.ONGOING,))
ENDING: Final = frozenset((TransactionState.PREPARE_COMMIT, TransactionState.PREPARE_ABORT))
"""Decided, and markers are being written."""
AT_REST: Final = frozenset((TransactionState.EMPTY, TransactionState.COMPLETE_COMMIT, TransactionState.COMPLETE_ABORT))


class Producer(NamedTuple):
    """A producer id and the epoch of the one who holds it."""

    producer_id: int
    epoch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Transaction:
    """The state of a transactional id.

    ``last_epoch`` is the epoch that its producer had before ``epoch``, if it is that producer's to ask again with: -1
    once somebody else was meant to be fenced. ``previous_producer_id`` is the one before ``producer_id``, and
    ``next_producer_id`` the one after, from when the transaction that used up the epochs has been decided. ``version``
    is Kafka's transaction version of the last end. Times are the broker's, in ms; ``started_ms`` is -1 before the first
    transaction.
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
    version: int = RAISES_EPOCHS

    @property
    def producer(self) -> Producer:
        """Who may go on with it."""
        return Producer(self.producer_id, self.epoch)

    @property
    def has_epochs_left(self) -> bool:
        """Whether the epoch can be raised for the same producer id."""
        return self.epoch < LAST_EPOCH

    @property
    def is_open(self) -> bool:
        """Whether it has begun and is not ended everywhere."""
        return self.state in OPEN or self.state in ENDING

    @property
    def is_committed(self) -> bool:
        """Whether its last transaction has been decided to be committed."""
        return self.state in (TransactionState.PREPARE_COMMIT, TransactionState.COMPLETE_COMMIT)

    def record(self) -> StateRecord:
        """What is written of it."""
        value = TransactionLogValue(
            producer_id=self.producer_id,
            previous_producer_id=self.previous_producer_id,
            next_producer_id=self.next_producer_id,
            producer_epoch=self.epoch,
            transaction_timeout_ms=self.timeout_ms,
            transaction_status=self.state,
            transaction_partitions=None if self.state is TransactionState.EMPTY else _by_topic(self.partitions),
            transaction_last_update_timestamp_ms=self.updated_ms,
            transaction_start_timestamp_ms=self.started_ms,
            client_transaction_version=self.version,
        )
        return StateRecord(key_of(self.transactional_id), write_versioned(value, _VALUE_VERSION))


@dataclass(frozen=True, slots=True, kw_only=True)
class ExternalCommit:
    """What is known of an external id, under which producers are committed together. Times in ms, -1 is never.

    ``external_epoch`` is the last one that was committed; ``begun_epoch`` the last one that an attempt has begun,
    ``attempt`` the one that may commit it, and ``former_attempts`` those at the same epoch that it has fenced, the
    latest first. ``owner`` is who alone uses the id, if that was said. ``retention_ms`` of 0 is for ever.
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
        """What is written of it."""
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
    """What a record says."""
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
    """The key of an external id's records."""
    return write_versioned(ExternalCommitKey(external_id=external_id), ExternalCommitKey.VERSION_MAX)


def place_of(external_id: str, number: int) -> str:
    """The transactional id of a place in what is committed under an external id."""
    return f"{external_id}-{number}"


def is_place_of(external_id: str, transactional_id: str) -> bool:
    """Whether a transactional id is one of ``place_of``."""
    rest = transactional_id.removeprefix(f"{external_id}-")
    return rest != transactional_id and rest.isascii() and rest.isdecimal()


def key_of(transactional_id: str) -> bytes:
    """The key of a transactional id's records."""
    return write_versioned(TransactionLogKey(transactional_id=transactional_id), 0)


def transaction_of(transactional_id: str, value: TransactionLogValue) -> Transaction:
    """What a record says.

    The last epoch is not written down. Where the end of a transaction has raised the epoch it follows from the others;
    that a producer was fenced by it is forgotten, and so it may then learn that its transaction was aborted.
    """
    state = TransactionState(value.transaction_status)
    return Transaction(
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
    )


def _last_epoch(state: TransactionState, value: TransactionLogValue) -> int:
    if value.client_transaction_version < RAISES_EPOCHS or state in OPEN or state is TransactionState.EMPTY:
        return NO_PRODUCER_EPOCH
    if value.producer_epoch == EPOCH_MAX and value.next_producer_id == NO_PRODUCER_ID:
        return NO_PRODUCER_EPOCH  # it was raised to fence
    return value.producer_epoch - 1 if value.producer_epoch > 0 else LAST_EPOCH


def _by_topic(partitions: Iterable[PartitionKey]) -> tuple[TransactionPartitions, ...]:
    numbers: dict[str, list[int]] = defaultdict(list)
    for topic, number in sorted(partitions):
        numbers[topic].append(number)
    return tuple(TransactionPartitions(topic=topic, partition_ids=tuple(ids)) for topic, ids in numbers.items())


@dataclass(frozen=True, slots=True, kw_only=True)
class Marker:
    """The end of a transaction. ``version`` 2 says that the epoch is above that of the transaction's records."""

    producer_id: int
    epoch: int
    committed: bool
    coordinator_epoch: int
    version: int = RAISES_EPOCHS
