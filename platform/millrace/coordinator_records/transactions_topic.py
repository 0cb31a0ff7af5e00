"""Records of ``__transaction_state`` (Kafka's ``transaction-coordinator`` messages).

A second kind of record is millrace's own: the last joint commit of several producers under an external id. Its key
has a type that Kafka does not know, and Kafka's coordinator skips such records. The state of a transactional id that
was assigned under an external id has a tagged field with it, which Kafka's coordinator skips too.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Final

from millrace.coordinator_records.keys import UnknownKey, read_key
from millrace.errors import InvalidRecordError
from millrace.kafka_protocol import Message, message, of, read_versioned
from millrace.kafka_protocol.data.transaction_log import PartitionsSchema as TransactionPartitions
from millrace.kafka_protocol.data.transaction_log import TransactionLogKey, TransactionLogValue

__all__ = [
    "ExternalCommitKey",
    "ExternalCommitValue",
    "TransactionLogKey",
    "TransactionLogValue",
    "TransactionPartitions",
    "TransactionState",
    "external_id_field",
    "external_id_of",
    "read_external_commit",
    "read_transaction_key",
    "read_transaction_value",
]

_EXTERNAL_ID_TAG: Final = 1000
"""Tag of the external id in ``TransactionLogValue``, far from Kafka's tags."""


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


@message(versions="0", api_key=1000)
class ExternalCommitKey(Message):
    """Key of an external id, under which producers commit together.

    A streaming query is an example of an external id.
    """

    external_id: str = of("string")


@message(versions="0-1", flexible="0+")
class ExternalCommitValue(Message):
    """Committed and begun epoch of an external id.

    ``external_epoch`` was committed last, at ``commit_timestamp_ms``. ``begun_epoch`` was begun since. -1 means none.

    The record is in one batch with the ``PREPARE_COMMIT`` records of the epoch's producers, so that it exists exactly
    if they do. It is deleted after ``retention_ms`` without use; 0 means never.
    """

    external_epoch: int = of("int64")
    commit_timestamp_ms: int = of("int64")
    owner: str = of("string", versions="1+", ignorable=True, default="")
    begun_epoch: int = of("int64", versions="1+", ignorable=True, default=-1)
    attempt: str = of("string", versions="1+", ignorable=True, default="")
    former_attempts: tuple[str, ...] = of("[]string", versions="1+", ignorable=True, default=())
    last_update_timestamp_ms: int = of("int64", versions="1+", ignorable=True, default=-1)
    retention_ms: int = of("int64", versions="1+", ignorable=True, default=0)


def read_transaction_key(data: bytes) -> TransactionLogKey | ExternalCommitKey | UnknownKey:
    """Read a record's key. Raises ``InvalidRecordError`` if it is damaged."""
    key = read_key(data, TransactionLogKey, ExternalCommitKey)
    assert isinstance(key, TransactionLogKey | ExternalCommitKey | UnknownKey)
    return key


def read_transaction_value(data: bytes) -> TransactionLogValue:
    """Read the state of a transactional id. Raises ``InvalidRecordError``, ``UnsupportedVersionError``."""
    return read_versioned(TransactionLogValue, data)[1]


def read_external_commit(data: bytes) -> ExternalCommitValue:
    """Read the last commit of an external id. Raises ``InvalidRecordError``, ``UnsupportedVersionError``."""
    return read_versioned(ExternalCommitValue, data)[1]


def external_id_field(external_id: str) -> tuple[tuple[int, bytes], ...]:
    """Return the tagged fields of a transactional id that was assigned under an external id, none if ""."""
    return ((_EXTERNAL_ID_TAG, external_id.encode()),) if external_id else ()


def external_id_of(value: TransactionLogValue) -> str:
    """Return the external id under which a transactional id was assigned, "" if a client chose the id.

    Raises ``InvalidRecordError`` if the field is damaged.
    """
    found = dict(value.unknown_tagged_fields).get(_EXTERNAL_ID_TAG, b"")
    try:
        return found.decode()
    except UnicodeDecodeError as error:
        raise InvalidRecordError(f"the external id {found!r} of a transactional id is not UTF-8: {error}") from None
