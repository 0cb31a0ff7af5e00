"""Errors of brokers: leadership, time, storage, requests."""

from __future__ import annotations

from millrace.errors.base import MillraceError


class LeaderNotAvailableError(MillraceError):
    """The partition has no leader now."""

    code = 5
    retriable = True


class NotLeaderError(MillraceError):
    """This broker does not lead the partition; the metadata must be fetched again."""

    code = 6
    retriable = True


class RequestTimedOutError(MillraceError):
    """The request could not be completed within its time; whether it took effect is not known."""

    code = 7
    retriable = True


class BrokerUnavailableError(MillraceError):
    """No broker answered at the given address."""

    code = 8
    retriable = True
    was_sent: bool = True
    """Whether the broker may have got the request; without, it is certain that nothing has happened."""


class StorageError(MillraceError):
    """The disk refused: full, read-only or failing. Nothing of the request was acknowledged."""

    code = 56
    retriable = True


class DiskFullError(StorageError):
    """The disk has no room for what was to be written; nothing of it was. Space makes the same request succeed."""

    code = 1040
    retriable = True


class RemoteStorageError(StorageError):
    """The remote store of a tiered topic does not answer, or refuses; what is on the broker's own disk is untouched."""

    code = 1050
    retriable = True


class FencedLeaderEpochError(MillraceError):
    """The leader epoch in the request is older than the broker's."""

    code = 74
    retriable = True


class UnknownLeaderEpochError(MillraceError):
    """The leader epoch in the request is newer than the broker's."""

    code = 75
    retriable = True


class OffsetNotAvailableError(MillraceError):
    """A new leader does not know yet how far the partition may be read: earlier ones may have said more (KIP-207)."""

    code = 78
    retriable = True


class AuthorizationError(MillraceError):
    """The principal may not do this."""

    code = 29


class UnsupportedVersionError(MillraceError):
    """The other side is too old or too new for this request or format."""

    code = 35


class InvalidRequestError(MillraceError):
    """A request that no correct client sends."""

    code = 42


class ThrottledError(MillraceError):
    """A limit of the broker is reached (connections, requests in flight, memory); try again later."""

    code = 89
    retriable = True
