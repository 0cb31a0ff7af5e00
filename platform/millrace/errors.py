"""The one error hierarchy. Every error that crosses a boundary is one of these.

An error carries Kafka's numeric code where Kafka has one (its protocol guide, "Error Codes"), and a code from
1000 up where it does not. The code is what travels on the wire: ``error_of`` turns a received code and message
back into the same class on the other side. ``retriable`` says whether the same request may succeed later
without anything having been changed by the caller.

A message names the thing and the remedy: "offsets 0..41 of orders-3 are gone (retention): start at 42".
"""

from __future__ import annotations

from typing import ClassVar


class MillraceError(Exception):
    """Base of all errors that millrace raises on purpose."""

    code: ClassVar[int] = -1
    retriable: ClassVar[bool] = False

    @property
    def message(self) -> str:
        """The text without the class name, as it is sent over the wire and shown to people."""
        return str(self.args[0]) if self.args else type(self).__name__


class UnknownServerError(MillraceError):
    """The broker failed in a way it did not foresee; its log has the stack trace."""

    code = -1


# --- records -------------------------------------------------------------------------------------------------


class OffsetOutOfRangeError(MillraceError):
    """The offset asked for is before the log start or after the high watermark."""

    code = 1


class CorruptBatchError(MillraceError):
    """A record batch fails its checksum, its size or its own rules."""

    code = 2


class MessageTooLargeError(MillraceError):
    """A record batch is larger than ``max.message.bytes`` of its topic."""

    code = 10


class RecordListTooLargeError(MillraceError):
    """The batches of one partition in a request are larger than a segment may be."""

    code = 18


class InvalidTimestampError(MillraceError):
    """A record's timestamp is out of the range that its topic accepts."""

    code = 32


class UnsupportedForFormatError(MillraceError):
    """The record format cannot hold what was asked of it (headers in magic 1, say)."""

    code = 43


class UnsupportedCompressionError(MillraceError):
    """The compression type is unknown, or not one of this encoding's."""

    code = 76


class InvalidRecordError(MillraceError):
    """A record breaks a rule of its batch or topic."""

    code = 87


# --- topics and partitions -----------------------------------------------------------------------------------


class UnknownTopicOrPartitionError(MillraceError):
    """No such topic, or the topic has no such partition."""

    code = 3
    retriable = True


class InvalidTopicError(MillraceError):
    """A topic name breaks the naming rule: 1 to 249 of ``[a-zA-Z0-9._-]``, not ``.`` or ``..``."""

    code = 17


class TopicExistsError(MillraceError):
    """A topic of that name is already there."""

    code = 36


class InvalidPartitionsError(MillraceError):
    """A partition count is not positive, too large, or not an increase."""

    code = 37


class InvalidReplicationFactorError(MillraceError):
    """More replicas asked for than there are live brokers, or fewer than one."""

    code = 38


class InvalidConfigError(MillraceError):
    """A configuration key is unknown or its value is not acceptable."""

    code = 40


class PolicyViolationError(MillraceError):
    """A request goes against a policy: records of a topic that is only compacted cannot be deleted, say."""

    code = 44


class UnknownTopicIdError(MillraceError):
    """No topic has that id: it was deleted, and perhaps created again under the same name."""

    code = 100


class InconsistentTopicIdError(MillraceError):
    """The topic of that name has another id than the caller's: it was deleted and created again."""

    code = 103


# --- leadership, time, storage -------------------------------------------------------------------------------


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


# --- producers -----------------------------------------------------------------------------------------------


class NotEnoughReplicasError(MillraceError):
    """Fewer replicas are in sync than ``min.insync.replicas``; nothing was appended."""

    code = 19
    retriable = True


class InvalidRequiredAcksError(MillraceError):
    """``acks`` is not one of 0, 1, -1 (all)."""

    code = 21


class OutOfOrderSequenceError(MillraceError):
    """An idempotent producer's batch does not follow the one before it."""

    code = 45


class DuplicateSequenceError(MillraceError):
    """An idempotent producer's batch was already appended, too long ago for its offset to be known."""

    code = 46


class InvalidProducerEpochError(MillraceError):
    """A newer instance of this producer has taken over (fencing)."""

    code = 47


class InvalidTxnStateError(MillraceError):
    """A batch or request does not fit the state of its producer's transaction."""

    code = 48


class TransactionCoordinatorFencedError(MillraceError):
    """A transaction marker comes from a coordinator that another has replaced."""

    code = 52


# --- transactions ----------------------------------------------------------------------------------------------------


class InvalidProducerIdMappingError(MillraceError):
    """The producer id is not that of the transactional id: initialise the transactions anew."""

    code = 49


class InvalidTransactionTimeoutError(MillraceError):
    """``transaction.timeout.ms`` is above what the broker allows (``transaction.max.timeout.ms``)."""

    code = 50


class ConcurrentTransactionsError(MillraceError):
    """The transaction before this one is still being ended."""

    code = 51
    retriable = True


class UnknownProducerIdError(MillraceError):
    """Nothing is known (any more) of the producer that ends a transaction in a partition."""

    code = 59


class ProducerFencedError(MillraceError):
    """A newer producer with the same transactional id has taken over, or its transaction timed out."""

    code = 90


class OperationNotAttemptedError(MillraceError):
    """Nothing was done about this item, because another one of the request was refused."""

    code = 55


class TransactionalIdNotFoundError(MillraceError):
    """There is no such transactional id."""

    code = 105


class AbortableTransactionError(MillraceError):
    """The transaction cannot be committed any more: abort it, and begin another one."""

    code = 120


# --- coordinators and groups -----------------------------------------------------------------------------------------


class OffsetMetadataTooLargeError(MillraceError):
    """The text beside a committed offset is longer than ``offset.metadata.max.bytes``."""

    code = 12


class CoordinatorLoadInProgressError(MillraceError):
    """The coordinator is still reading its state."""

    code = 14
    retriable = True


class CoordinatorNotAvailableError(MillraceError):
    """There is no coordinator for this group or transactional id now."""

    code = 15
    retriable = True


class NotCoordinatorError(MillraceError):
    """Another broker coordinates this group or transactional id: find the coordinator anew."""

    code = 16
    retriable = True


class IllegalGenerationError(MillraceError):
    """The member's generation is over: the group has rebalanced without it."""

    code = 22


class InconsistentGroupProtocolError(MillraceError):
    """The member has no assignor or protocol type in common with the group."""

    code = 23


class InvalidGroupIdError(MillraceError):
    """The group id is empty or not one."""

    code = 24


class UnknownMemberError(MillraceError):
    """The group does not know this member (any more): join again."""

    code = 25


class InvalidSessionTimeoutError(MillraceError):
    """``session.timeout.ms`` is outside what the broker allows."""

    code = 26


class RebalanceInProgressError(MillraceError):
    """The group is rebalancing: join again."""

    code = 27


class InvalidCommitOffsetSizeError(MillraceError):
    """The offsets committed at once are too many for one batch of the offsets topic."""

    code = 28


class UnsupportedAssignorError(MillraceError):
    """No such assignor."""

    code = 112


class NonEmptyGroupError(MillraceError):
    """The group has members: stop them first."""

    code = 68


class GroupIdNotFoundError(MillraceError):
    """There is no such group."""

    code = 69


class MemberIdRequiredError(MillraceError):
    """Join again with the member id that the answer brings."""

    code = 79


class GroupMaxSizeReachedError(MillraceError):
    """The group has as many members as ``group.max.size`` allows."""

    code = 81


class FencedInstanceIdError(MillraceError):
    """Another member with the same ``group.instance.id`` has taken over."""

    code = 82


class GroupSubscribedToTopicError(MillraceError):
    """The group is subscribed to the topic whose offsets were to be deleted."""

    code = 86


class UnstableOffsetCommitError(MillraceError):
    """A transaction has offsets pending in this partition."""

    code = 88
    retriable = True


class FencedMemberEpochError(MillraceError):
    """The member's epoch is not the present one: join again."""

    code = 110


class InvalidRecordStateError(MillraceError):
    """A record that is acknowledged is not acquired by this member (any more)."""

    code = 121


class CommitFailedError(MillraceError):
    """Offsets were not committed: the group has given the partitions to another member meanwhile."""

    code = 1060


class WakeupError(MillraceError):
    """``wakeup`` was called: the poll ended without records."""

    code = 1061


class ConcurrentUseError(MillraceError):
    """A consumer is in use in another thread: only ``wakeup`` may be called from there."""

    code = 1062


# --- requests ------------------------------------------------------------------------------------------------


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


# --- ours: schemas, clients, environment ---------------------------------------------------------------------


class SchemaError(MillraceError):
    """A schema cannot be read, or holds a type or name that a typed topic does not accept."""

    code = 1000


class SchemaMismatchError(SchemaError):
    """Data does not fit the topic's schema; the message names the column, and the row where there is one."""

    code = 1001


class IncompatibleSchemaError(SchemaError):
    """A schema change is not an addition of nullable columns."""

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
    """A record was not sent, or does not count, because its transaction was aborted."""

    code = 1013


class UnknownOutcomeError(MillraceError):
    """The connection broke after a request was sent: the records may or may not be in the log."""

    code = 1012


class OffsetsLostError(MillraceError):
    """Records between two offsets are gone; the message says which, why, and what to do."""

    code = 1020


class EnvironmentProblemError(MillraceError):
    """Something outside millrace is missing or wrong: Java, JARs, a port in use, a directory of another broker."""

    code = 1030


class UsageError(MillraceError):
    """An option or argument is wrong; the message names it, its value and the accepted form."""

    code = 1031


def _all_subclasses(cls: type[MillraceError]) -> list[type[MillraceError]]:
    return [cls] + [leaf for child in cls.__subclasses__() for leaf in _all_subclasses(child)]


_BY_CODE: dict[int, type[MillraceError]] = {
    cls.code: cls for cls in _all_subclasses(MillraceError) if cls is not MillraceError
}


def error_of(code: int, message: str) -> MillraceError:
    """Rebuild the error that a broker sent as ``code`` and ``message``; unknown codes give ``UnknownServerError``."""
    return _BY_CODE.get(code, UnknownServerError)(message)
