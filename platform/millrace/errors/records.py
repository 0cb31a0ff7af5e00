"""Errors of records and batches."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from millrace.errors.base import MillraceError


class _NamesRecords:
    """Mixin of errors that name single records.

    ``record_errors`` has the faults of single records by their index in the batch, if known.
    """

    def __init__(self, *args: object, record_errors: Mapping[int, str] | None = None) -> None:
        super().__init__(*args)
        self.record_errors: Final[Mapping[int, str]] = record_errors or {}


class OffsetOutOfRangeError(MillraceError):
    """The requested offset is outside the log.

    The offset is before the log start or after the high watermark.
    """

    code = 1


class LogTruncationError(OffsetOutOfRangeError):
    """An unclean election truncated records that a consumer has read (KIP-320).

    ``divergent_offset`` is where the log diverges from the read records, ``None`` if the leader does not know it.
    """

    code = 1021

    def __init__(self, *args: object, divergent_offset: int | None = None) -> None:
        super().__init__(*args)
        self.divergent_offset = divergent_offset


class UnreadableValueError(MillraceError):
    """A record has a value that no Python type holds.

    An example is a date after the year 9999. Kafka has ``RecordDeserializationException``. ``offset`` is the record's.
    Tables of records hold such values.
    """

    code = 1022

    def __init__(self, *args: object, offset: int = -1) -> None:
        super().__init__(*args)
        self.offset: Final = offset


class CorruptBatchError(MillraceError):
    """A record batch fails its checksum, its size or its format rules."""

    code = 2


class MessageTooLargeError(MillraceError):
    """A record batch is larger than ``max.message.bytes`` of its topic."""

    code = 10


class RecordListTooLargeError(MillraceError):
    """The batches of one partition in a request exceed a segment."""

    code = 18


class InvalidTimestampError(_NamesRecords, MillraceError):
    """A record's timestamp is outside the range that its topic accepts."""

    code = 32


class UnsupportedForFormatError(MillraceError):
    """The record format cannot hold the data.

    For example, messages of magic 1 hold no headers.
    """

    code = 43


class UnsupportedCompressionError(MillraceError):
    """The compression type is unknown, or not supported by the batch format."""

    code = 76


class InvalidRecordError(_NamesRecords, MillraceError):
    """A record breaks a rule of its batch or topic."""

    code = 87
