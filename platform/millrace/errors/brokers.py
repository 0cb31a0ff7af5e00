"""Errors of brokers: leadership, time, storage, requests."""

from __future__ import annotations

from millrace.errors.base import MillraceError


class LeaderNotAvailableError(MillraceError):
    """The partition has no leader now."""

    code = 5
    retriable = True


class NotLeaderError(MillraceError):
    """This broker does not lead the partition. Fetch the metadata again."""

    code = 6
    retriable = True


class RequestTimedOutError(MillraceError):
    """The request could not be completed in time; its effect is unknown."""

    code = 7
    retriable = True


class BrokerUnavailableError(MillraceError):
    """No broker answered at the given address."""

    code = 8
    retriable = True
    was_sent: bool = True
    """True if the broker may have received the request. Otherwise nothing has happened."""


class StorageError(MillraceError):
    """The disk is full, read-only or failing. Nothing of the request was acknowledged."""

    code = 56
    retriable = True


class DiskFullError(StorageError):
    """The disk is full. Nothing was written. Retry after freeing space."""

    code = 1040
    retriable = True


class RemoteStorageError(StorageError):
    """The remote store of a tiered topic does not respond, or refuses. Data on the broker's own disk is unaffected."""

    code = 1050
    retriable = True


class ListenerNotFoundError(MillraceError):
    """The partition's leader does not have the client's listener."""

    code = 72
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
    """A new leader does not know its high watermark yet (KIP-207).

    That high watermark may be below an earlier leader's.
    """

    code = 78
    retriable = True


class AuthorizationError(MillraceError):
    """The principal is not authorized for the operation. Subclasses name the type of the resource."""

    code = 29


class TopicAuthorizationError(AuthorizationError):
    """The principal is not authorized for the operation on a topic."""

    code = 29


class GroupAuthorizationError(AuthorizationError):
    """The principal is not authorized for the operation on a group."""

    code = 30


class ClusterAuthorizationError(AuthorizationError):
    """The principal is not authorized for the operation on the cluster."""

    code = 31


class TransactionalIdAuthorizationError(AuthorizationError):
    """The principal is not authorized for the operation on a transactional id."""

    code = 53


class DelegationTokenAuthorizationError(AuthorizationError):
    """The principal is not authorized for the operation on a delegation token."""

    code = 65


class DelegationTokenDisabledError(MillraceError):
    """The brokers have no secret key for delegation tokens."""

    code = 61


class DelegationTokenNotFoundError(MillraceError):
    """The cluster has no such delegation token."""

    code = 62


class DelegationTokenOwnerMismatchError(MillraceError):
    """The principal neither owns the delegation token nor may renew it."""

    code = 63


class DelegationTokenRequestNotAllowedError(MillraceError):
    """Delegation tokens are for authenticated clients that have not used one themselves."""

    code = 64


class DelegationTokenExpiredError(MillraceError):
    """The delegation token has expired."""

    code = 66


class InvalidPrincipalTypeError(MillraceError):
    """The type of a principal is not ``User``."""

    code = 67


class SecurityDisabledError(MillraceError):
    """The broker has no authorizer, so it has no ACLs."""

    code = 54


class UnsupportedVersionError(MillraceError):
    """The other side does not support this version.

    The other side is too old or too new for the request or format.
    """

    code = 35


class InvalidRequestError(MillraceError):
    """The request is invalid; a correct client does not send it."""

    code = 42


class ThrottledError(MillraceError):
    """A limit of the broker is reached. Try again later.

    Limits are those of connections, requests in flight and memory.
    """

    code = 89
    retriable = True


class UnsupportedSaslMechanismError(MillraceError):
    """The listener does not have the SASL mechanism that the client chose."""

    code = 33


class IllegalSaslStateError(MillraceError):
    """A SASL message was not expected.

    The message came at the wrong time, or at a listener without SASL.
    """

    code = 34


class ResourceNotFoundError(MillraceError):
    """The user or credential does not exist."""

    code = 91


class DuplicateResourceError(MillraceError):
    """A request changes one credential twice."""

    code = 92


class UnacceptableCredentialError(MillraceError):
    """A credential is invalid, such as one with too few iterations."""

    code = 93


class SaslAuthenticationError(MillraceError):
    """The broker refuses the client's credentials."""

    code = 58


class SslAuthenticationError(MillraceError):
    """The TLS handshake failed.

    One side refuses the other's certificate, or the two sides agree on no version or cipher.
    """

    code = 1080
