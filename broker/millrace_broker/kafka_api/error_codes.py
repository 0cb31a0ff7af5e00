"""Kafka's error codes for the errors of this broker.

Errors up to ``_KAFKA_CODE_MAX`` have Kafka's own numbers. Kafka's clients do not know the other ones.
"""

from __future__ import annotations

from typing import Final

from millrace import errors
from millrace.errors import MillraceError
from millrace.protocol import millrace_pb2 as pb

NONE: Final = 0
_KAFKA_CODE_MAX: Final = 999
_UNKNOWN: Final = -1

_CODES: Final[dict[int, int]] = {
    errors.SchemaError.code: errors.InvalidRecordError.code,
    errors.SchemaMismatchError.code: errors.InvalidRecordError.code,
    errors.IncompatibleSchemaError.code: errors.InvalidConfigError.code,
    errors.UnknownSchemaError.code: errors.InvalidRecordError.code,
    errors.UsageError.code: errors.InvalidRequestError.code,
    errors.DiskFullError.code: errors.StorageError.code,
    errors.RemoteStorageError.code: errors.StorageError.code,
    errors.OffsetsLostError.code: errors.OffsetOutOfRangeError.code,
    errors.LogTruncationError.code: errors.OffsetOutOfRangeError.code,
}


def code_of(error: MillraceError | pb.Error) -> int:
    """Return Kafka's code of an error; 0 for an empty ``pb.Error``."""
    return error.code if -1 <= error.code <= _KAFKA_CODE_MAX else _CODES.get(error.code, _UNKNOWN)


def code_for(error_code: int, *, knows_fencing: bool = True, knows_abortable: bool = True) -> int:
    """Return the code of an error, or the older code for a client that does not know it.

    The newer codes are ``PRODUCER_FENCED`` and ``TRANSACTION_ABORTABLE``.
    """
    if error_code == errors.ProducerFencedError.code and not knows_fencing:
        return errors.InvalidProducerEpochError.code
    if error_code == errors.AbortableTransactionError.code and not knows_abortable:
        return errors.InvalidTxnStateError.code
    return error_code


def coordinator_code(error_code: int, *, knows_fencing: bool) -> int:
    """Return the code with which a transaction coordinator refuses an addition to a transaction.

    Kafka's coordinator has one code for a fenced producer and for a producer whose transaction has timed out.
    """
    if error_code == errors.InvalidProducerEpochError.code:
        error_code = errors.ProducerFencedError.code
    return code_for(error_code, knows_fencing=knows_fencing)


def text_of(error: pb.Error, text_if_none: str | None = None) -> str | None:
    """Return the message of an error. Kafka's calls do not agree on the text in place of a message."""
    return error.message or text_if_none
