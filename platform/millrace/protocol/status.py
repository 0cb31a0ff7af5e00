"""Mapping between ``millrace.errors`` and gRPC's status codes, both ways.

A request that fails as a whole ends its call with a status. The error's message is the status's details, and its
numeric code is in the trailing metadata. The client raises the same class from that code. The status itself is for
proxies and foreign clients. A call without that code never reached a handler, so only its status is known.
"""

from __future__ import annotations

from typing import Any, Final

import grpc

from millrace import errors

ERROR_CODE_KEY: Final = "millrace-error-code"
"""Key of the trailing metadata for the error's number in decimal."""

_STATUS: Final[dict[type[errors.MillraceError], grpc.StatusCode]] = {
    errors.OffsetOutOfRangeError: grpc.StatusCode.OUT_OF_RANGE,
    errors.CorruptBatchError: grpc.StatusCode.DATA_LOSS,
    errors.UnknownTopicOrPartitionError: grpc.StatusCode.NOT_FOUND,
    errors.UnknownTopicIdError: grpc.StatusCode.NOT_FOUND,
    errors.UnknownSchemaError: grpc.StatusCode.NOT_FOUND,
    errors.OffsetsLostError: grpc.StatusCode.DATA_LOSS,
    errors.TopicExistsError: grpc.StatusCode.ALREADY_EXISTS,
    errors.LeaderNotAvailableError: grpc.StatusCode.UNAVAILABLE,
    errors.ListenerNotFoundError: grpc.StatusCode.UNAVAILABLE,
    errors.NotLeaderError: grpc.StatusCode.UNAVAILABLE,
    errors.BrokerUnavailableError: grpc.StatusCode.UNAVAILABLE,
    errors.StorageError: grpc.StatusCode.UNAVAILABLE,
    errors.RequestTimedOutError: grpc.StatusCode.DEADLINE_EXCEEDED,
    errors.FencedLeaderEpochError: grpc.StatusCode.FAILED_PRECONDITION,
    errors.UnknownLeaderEpochError: grpc.StatusCode.FAILED_PRECONDITION,
    errors.InconsistentTopicIdError: grpc.StatusCode.FAILED_PRECONDITION,
    errors.OutOfOrderSequenceError: grpc.StatusCode.FAILED_PRECONDITION,
    errors.DuplicateSequenceError: grpc.StatusCode.ALREADY_EXISTS,
    errors.InvalidProducerEpochError: grpc.StatusCode.FAILED_PRECONDITION,
    errors.InvalidTxnStateError: grpc.StatusCode.FAILED_PRECONDITION,
    errors.InvalidProducerIdMappingError: grpc.StatusCode.FAILED_PRECONDITION,
    errors.ProducerFencedError: grpc.StatusCode.FAILED_PRECONDITION,
    errors.ConcurrentTransactionsError: grpc.StatusCode.ABORTED,
    errors.AbortableTransactionError: grpc.StatusCode.ABORTED,
    errors.TransactionalIdNotFoundError: grpc.StatusCode.NOT_FOUND,
    errors.CoordinatorLoadInProgressError: grpc.StatusCode.UNAVAILABLE,
    errors.CoordinatorNotAvailableError: grpc.StatusCode.UNAVAILABLE,
    errors.NotCoordinatorError: grpc.StatusCode.UNAVAILABLE,
    errors.IllegalGenerationError: grpc.StatusCode.FAILED_PRECONDITION,
    errors.UnknownMemberError: grpc.StatusCode.FAILED_PRECONDITION,
    errors.RebalanceInProgressError: grpc.StatusCode.ABORTED,
    errors.FencedInstanceIdError: grpc.StatusCode.FAILED_PRECONDITION,
    errors.FencedMemberEpochError: grpc.StatusCode.FAILED_PRECONDITION,
    errors.NonEmptyGroupError: grpc.StatusCode.FAILED_PRECONDITION,
    errors.GroupIdNotFoundError: grpc.StatusCode.NOT_FOUND,
    errors.GroupMaxSizeReachedError: grpc.StatusCode.RESOURCE_EXHAUSTED,
    errors.IncompatibleSchemaError: grpc.StatusCode.FAILED_PRECONDITION,
    errors.AuthorizationError: grpc.StatusCode.PERMISSION_DENIED,
    errors.SaslAuthenticationError: grpc.StatusCode.UNAUTHENTICATED,
    errors.UnsupportedSaslMechanismError: grpc.StatusCode.UNAUTHENTICATED,
    errors.UnsupportedVersionError: grpc.StatusCode.UNIMPLEMENTED,
    errors.ThrottledError: grpc.StatusCode.RESOURCE_EXHAUSTED,
    errors.UnknownServerError: grpc.StatusCode.INTERNAL,
    errors.EnvironmentProblemError: grpc.StatusCode.INTERNAL,
}

_ERROR_WITHOUT_NUMBER: Final[dict[grpc.StatusCode, type[errors.MillraceError]]] = {
    grpc.StatusCode.UNAVAILABLE: errors.BrokerUnavailableError,
    grpc.StatusCode.DEADLINE_EXCEEDED: errors.RequestTimedOutError,
    grpc.StatusCode.UNIMPLEMENTED: errors.UnsupportedVersionError,
    grpc.StatusCode.UNAUTHENTICATED: errors.AuthorizationError,
    grpc.StatusCode.PERMISSION_DENIED: errors.AuthorizationError,
}


def status_of(error: errors.MillraceError) -> grpc.StatusCode:
    """Return the gRPC status of an error; an unlisted error is the caller's mistake (``INVALID_ARGUMENT``)."""
    for cls in type(error).__mro__:
        if cls in _STATUS:
            return _STATUS[cls]
    return grpc.StatusCode.INVALID_ARGUMENT


def error_from_rpc(rpc_error: grpc.RpcError) -> errors.MillraceError:
    """Return the error of a failed call.

    With ``millrace-error-code`` it is the error that the broker raised. Otherwise gRPC ended the call, because of a
    lost connection, a deadline, or a message above the limit of one side.
    """
    # grpc.RpcError is only a marker class: the raised object is also a call (in grpc and grpc.aio).
    call: Any = rpc_error
    details = call.details() or ""
    for key, value in call.trailing_metadata() or ():
        if key == ERROR_CODE_KEY:
            return errors.error_of(int(value), details)
    status: grpc.StatusCode = call.code()
    if status is grpc.StatusCode.RESOURCE_EXHAUSTED:
        # gRPC's own limit of a message ("... larger than max ..."), or a proxy's.
        cls = errors.MessageTooLargeError if "larger than max" in details else errors.ThrottledError
        return cls(details)
    if status is grpc.StatusCode.CANCELLED:
        return errors.RequestTimedOutError(
            f"the broker ended the call without an answer, because it is stopping ({details})"
        )
    return _ERROR_WITHOUT_NUMBER.get(status, errors.UnknownServerError)(f"{details} ({status.name})")
