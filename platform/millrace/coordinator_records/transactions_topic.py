"""Records of ``__transaction_state`` (Kafka 3.9's ``transaction-coordinator`` messages).

A second kind of record is millrace's own: the last joint commit of several producers under an external id. Its key
has a version that Kafka does not know, and Kafka's coordinator skips such records.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import ClassVar

from millrace.coordinator_records.messages import Kind, Message, of, read_version, read_versioned
from millrace.coordinator_records.offsets_topic import UnknownKey


class TransactionState(IntEnum):
    """State of a transaction."""

    EMPTY = 0
    ONGOING = 1
    PREPARE_COMMIT = 2
    PREPARE_ABORT = 3
    COMPLETE_COMMIT = 4
    COMPLETE_ABORT = 5
    DEAD = 6
    PREPARE_EPOCH_FENCE = 7

    @property
    def kafka_name(self) -> str:
        """Kafka's name: ``PrepareCommit``."""
        return self.name.title().replace("_", "")


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionLogKey(Message):
    """Key of a transactional id."""

    transactional_id: str = of(Kind.STRING)


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionPartitions(Message):
    """Partitions of a topic that a transaction has written to."""

    VERSION_MAX: ClassVar[int] = 1
    FLEXIBLE_SINCE: ClassVar[int] = 1

    topic: str = of(Kind.STRING)
    partition_ids: tuple[int, ...] = of(Kind.INT32S)


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionLogValue(Message):
    """The state of a transactional id. ``transaction_status`` is a ``TransactionState``; times in ms, -1 for none."""

    VERSION_MAX: ClassVar[int] = 1
    FLEXIBLE_SINCE: ClassVar[int] = 1

    producer_id: int = of(Kind.INT64)
    previous_producer_id: int = of(Kind.INT64, since=1, tag=0, default=-1)
    next_producer_id: int = of(Kind.INT64, since=1, tag=1, default=-1)
    producer_epoch: int = of(Kind.INT16)
    transaction_timeout_ms: int = of(Kind.INT32)
    transaction_status: int = of(Kind.INT8)
    transaction_partitions: tuple[TransactionPartitions, ...] | None = of(
        Kind.MESSAGES, nullable=True, element=TransactionPartitions
    )
    transaction_last_update_timestamp_ms: int = of(Kind.INT64)
    transaction_start_timestamp_ms: int = of(Kind.INT64)
    client_transaction_version: int = of(Kind.INT16, since=1, tag=2, default=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class ExternalCommitKey(Message):
    """Key of an external id under which producers commit together, for example a streaming query."""

    VERSION_MIN: ClassVar[int] = 1000
    VERSION_MAX: ClassVar[int] = 1000

    external_id: str = of(Kind.STRING)


@dataclass(frozen=True, slots=True, kw_only=True)
class ExternalCommitValue(Message):
    """Last committed epoch of an external id with its time, and the epoch begun since. -1 means none.

    The record is in one batch with the ``PREPARE_COMMIT`` records of the epoch's producers, so that it exists exactly
    if they do. It is deleted after ``retention_ms`` without use; 0 means never.
    """

    VERSION_MAX: ClassVar[int] = 1
    FLEXIBLE_SINCE: ClassVar[int] = 0

    external_epoch: int = of(Kind.INT64)
    commit_timestamp_ms: int = of(Kind.INT64)
    owner: str = of(Kind.STRING, since=1, default="")
    begun_epoch: int = of(Kind.INT64, since=1, default=-1)
    attempt: str = of(Kind.STRING, since=1, default="")
    former_attempts: tuple[str, ...] = of(Kind.STRINGS, since=1, default=())
    last_update_timestamp_ms: int = of(Kind.INT64, since=1, default=-1)
    retention_ms: int = of(Kind.INT64, since=1, default=0)


def read_transaction_key(data: bytes) -> TransactionLogKey | ExternalCommitKey | UnknownKey:
    """Read a record's key. Raises ``InvalidRecordError`` if it is damaged."""
    version = read_version(data)
    if version == 0:
        return TransactionLogKey.decode(data[2:], version)
    if version == ExternalCommitKey.VERSION_MAX:
        return ExternalCommitKey.decode(data[2:], version)
    return UnknownKey(version)


def read_transaction_value(data: bytes) -> TransactionLogValue:
    """Read the state of a transactional id. Raises ``InvalidRecordError``, ``UnsupportedVersionError``."""
    return read_versioned(TransactionLogValue, data)[1]


def read_external_commit(data: bytes) -> ExternalCommitValue:
    """Read the last commit of an external id. Raises ``InvalidRecordError``, ``UnsupportedVersionError``."""
    return read_versioned(ExternalCommitValue, data)[1]
