"""The one error hierarchy. Every error that crosses a boundary is one of these.

An error carries Kafka's numeric code where Kafka has one (its protocol guide, "Error Codes"), and a code from
1000 up where it does not. The code is what travels on the wire: ``error_of`` turns a received code and message
back into the same class on the other side. ``retriable`` says whether the same request may succeed later
without anything having been changed by the caller.

A message names the thing and the remedy: "offsets 0..41 of orders-3 are gone (retention): start at 42".
"""

from __future__ import annotations

from millrace.errors.base import (
    MillraceError,
    UnknownServerError,
)
from millrace.errors.brokers import (
    AuthorizationError,
    BrokerUnavailableError,
    DiskFullError,
    FencedLeaderEpochError,
    InvalidRequestError,
    LeaderNotAvailableError,
    NotLeaderError,
    RemoteStorageError,
    RequestTimedOutError,
    StorageError,
    ThrottledError,
    UnknownLeaderEpochError,
    UnsupportedVersionError,
)
from millrace.errors.clients import (
    BufferExhaustedError,
    ClientClosedError,
    EnvironmentProblemError,
    IncompatibleSchemaError,
    OffsetsLostError,
    SchemaError,
    SchemaMismatchError,
    TransactionAbortedError,
    UnknownOutcomeError,
    UnknownSchemaError,
    UsageError,
)
from millrace.errors.groups import (
    CommitFailedError,
    ConcurrentUseError,
    CoordinatorLoadInProgressError,
    CoordinatorNotAvailableError,
    FencedInstanceIdError,
    FencedMemberEpochError,
    GroupIdNotFoundError,
    GroupMaxSizeReachedError,
    GroupSubscribedToTopicError,
    IllegalGenerationError,
    InconsistentGroupProtocolError,
    InvalidCommitOffsetSizeError,
    InvalidGroupIdError,
    InvalidRecordStateError,
    InvalidSessionTimeoutError,
    MemberIdRequiredError,
    NonEmptyGroupError,
    NotCoordinatorError,
    OffsetMetadataTooLargeError,
    RebalanceInProgressError,
    UnknownMemberError,
    UnstableOffsetCommitError,
    UnsupportedAssignorError,
    WakeupError,
)
from millrace.errors.producers import (
    AbortableTransactionError,
    CommitOwnerError,
    ConcurrentTransactionsError,
    DuplicateSequenceError,
    InvalidProducerEpochError,
    InvalidProducerIdMappingError,
    InvalidRequiredAcksError,
    InvalidTransactionTimeoutError,
    InvalidTxnStateError,
    NotEnoughReplicasError,
    OperationNotAttemptedError,
    OutOfOrderSequenceError,
    ProducerFencedError,
    TransactionalIdNotFoundError,
    TransactionCoordinatorFencedError,
    UnknownProducerIdError,
)
from millrace.errors.records import (
    CorruptBatchError,
    InvalidRecordError,
    InvalidTimestampError,
    LogTruncationError,
    MessageTooLargeError,
    OffsetOutOfRangeError,
    RecordListTooLargeError,
    UnsupportedCompressionError,
    UnsupportedForFormatError,
)
from millrace.errors.topics import (
    InconsistentTopicIdError,
    InvalidConfigError,
    InvalidPartitionsError,
    InvalidReplicationFactorError,
    InvalidTopicError,
    PolicyViolationError,
    TopicExistsError,
    UnknownTopicIdError,
    UnknownTopicOrPartitionError,
)

__all__ = [
    "AbortableTransactionError",
    "AuthorizationError",
    "BrokerUnavailableError",
    "BufferExhaustedError",
    "ClientClosedError",
    "CommitFailedError",
    "CommitOwnerError",
    "ConcurrentTransactionsError",
    "ConcurrentUseError",
    "CoordinatorLoadInProgressError",
    "CoordinatorNotAvailableError",
    "CorruptBatchError",
    "DiskFullError",
    "DuplicateSequenceError",
    "EnvironmentProblemError",
    "FencedInstanceIdError",
    "FencedLeaderEpochError",
    "FencedMemberEpochError",
    "GroupIdNotFoundError",
    "GroupMaxSizeReachedError",
    "GroupSubscribedToTopicError",
    "IllegalGenerationError",
    "IncompatibleSchemaError",
    "InconsistentGroupProtocolError",
    "InconsistentTopicIdError",
    "InvalidCommitOffsetSizeError",
    "InvalidConfigError",
    "InvalidGroupIdError",
    "InvalidPartitionsError",
    "InvalidProducerEpochError",
    "InvalidProducerIdMappingError",
    "InvalidRecordError",
    "InvalidRecordStateError",
    "InvalidReplicationFactorError",
    "InvalidRequestError",
    "InvalidRequiredAcksError",
    "InvalidSessionTimeoutError",
    "InvalidTimestampError",
    "InvalidTopicError",
    "InvalidTransactionTimeoutError",
    "InvalidTxnStateError",
    "LeaderNotAvailableError",
    "LogTruncationError",
    "MemberIdRequiredError",
    "MessageTooLargeError",
    "MillraceError",
    "NonEmptyGroupError",
    "NotCoordinatorError",
    "NotEnoughReplicasError",
    "NotLeaderError",
    "OffsetMetadataTooLargeError",
    "OffsetOutOfRangeError",
    "OffsetsLostError",
    "OperationNotAttemptedError",
    "OutOfOrderSequenceError",
    "PolicyViolationError",
    "ProducerFencedError",
    "RebalanceInProgressError",
    "RecordListTooLargeError",
    "RemoteStorageError",
    "RequestTimedOutError",
    "SchemaError",
    "SchemaMismatchError",
    "StorageError",
    "ThrottledError",
    "TopicExistsError",
    "TransactionAbortedError",
    "TransactionCoordinatorFencedError",
    "TransactionalIdNotFoundError",
    "UnknownLeaderEpochError",
    "UnknownMemberError",
    "UnknownOutcomeError",
    "UnknownProducerIdError",
    "UnknownSchemaError",
    "UnknownServerError",
    "UnknownTopicIdError",
    "UnknownTopicOrPartitionError",
    "UnstableOffsetCommitError",
    "UnsupportedAssignorError",
    "UnsupportedCompressionError",
    "UnsupportedForFormatError",
    "UnsupportedVersionError",
    "UsageError",
    "WakeupError",
    "error_of",
]


def _all_subclasses(cls: type[MillraceError]) -> list[type[MillraceError]]:
    return [cls] + [leaf for child in cls.__subclasses__() for leaf in _all_subclasses(child)]


_BY_CODE: dict[int, type[MillraceError]] = {
    cls.code: cls for cls in _all_subclasses(MillraceError) if cls is not MillraceError
}


def error_of(code: int, message: str) -> MillraceError:
    """Rebuild the error that a broker sent as ``code`` and ``message``; unknown codes give ``UnknownServerError``."""
    return _BY_CODE.get(code, UnknownServerError)(message)
