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
    errors.SchemaError.code: 87,  # INVALID_RECORD
    errors.SchemaMismatchError.code: 87,
    errors.IncompatibleSchemaError.code: 40,  # INVALID_CONFIG
    errors.UnknownSchemaError.code: 87,
    errors.UsageError.code: 42,  # INVALID_REQUEST
    errors.DiskFullError.code: 56,  # KAFKA_STORAGE_ERROR
    errors.RemoteStorageError.code: 56,
    errors.OffsetsLostError.code: 1,  # OFFSET_OUT_OF_RANGE
    errors.LogTruncationError.code: 1,
}


def code_of(error: MillraceError | pb.Error) -> int:
    """Return Kafka's code of an error; 0 for an empty ``pb.Error``."""
    return error.code if -1 <= error.code <= _KAFKA_CODE_MAX else _CODES.get(error.code, _UNKNOWN)


def text_of(error: pb.Error) -> str | None:
    """Return the message of an error; None if there is none."""
    return error.message or None
