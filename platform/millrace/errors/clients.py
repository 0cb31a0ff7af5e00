"""Errors of schemas, clients and their environment."""

from __future__ import annotations

from millrace.errors.base import MillraceError


class SchemaError(MillraceError):
    """A schema is unreadable, or a typed topic does not accept it.

    A schema is not accepted if it holds an unsupported type or name.
    """

    code = 1000


class SchemaMismatchError(SchemaError):
    """Data does not fit the topic's schema.

    The message names the column, and the row if known.
    """

    code = 1001


class IncompatibleSchemaError(SchemaError):
    """A schema change is not allowed by the topic's ``schema.compatibility``."""

    code = 1002


class UnknownSchemaError(SchemaError):
    """No schema has that id."""

    code = 1003


class ClientClosedError(MillraceError):
    """The client was used after ``close()``."""

    code = 1010


class BufferExhaustedError(MillraceError):
    """The producer's buffer stayed full for ``max.block.ms``."""

    code = 1011
    retriable = True


class TransactionAbortedError(MillraceError):
    """The transaction of a record was aborted.

    The record was not sent, or it is not committed.
    """

    code = 1013


class UnknownOutcomeError(MillraceError):
    """The connection broke after a request was sent.

    Therefore the records may or may not be in the log.
    """

    code = 1012


class OffsetsLostError(MillraceError):
    """Records between two offsets no longer exist.

    The message gives the offsets, the reason and the remedy.
    """

    code = 1020


class EnvironmentProblemError(MillraceError):
    """The machine or its software prevents the operation.

    Examples are Java, JARs, a port in use, or a directory of another broker.
    """

    code = 1030


class UsageError(MillraceError):
    """An option or argument is wrong.

    The message names it, its value and the accepted form.
    """

    code = 1031
