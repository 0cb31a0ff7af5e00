"""Errors of coordinators and groups."""

from __future__ import annotations

from millrace.errors.base import MillraceError


class OffsetMetadataTooLargeError(MillraceError):
    """The metadata of a committed offset is longer than ``offset.metadata.max.bytes``."""

    code = 12


class CoordinatorLoadInProgressError(MillraceError):
    """The coordinator is still loading its state."""

    code = 14
    retriable = True


class CoordinatorNotAvailableError(MillraceError):
    """The group or transactional id has no coordinator at the moment."""

    code = 15
    retriable = True


class NotCoordinatorError(MillraceError):
    """Another broker coordinates this group or transactional id.

    The client must look up the coordinator again.
    """

    code = 16
    retriable = True


class IllegalGenerationError(MillraceError):
    """The member's generation has ended, because the group has rebalanced without it."""

    code = 22


class InconsistentGroupProtocolError(MillraceError):
    """The member shares no assignor or protocol type with the group."""

    code = 23


class InvalidGroupIdError(MillraceError):
    """The group id is empty or invalid."""

    code = 24


class UnknownMemberError(MillraceError):
    """The group does not know this member, or no longer does.

    The member must join again.
    """

    code = 25


class InvalidSessionTimeoutError(MillraceError):
    """``session.timeout.ms`` is outside the broker's limits."""

    code = 26


class RebalanceInProgressError(MillraceError):
    """The group is rebalancing: join again."""

    code = 27


class InvalidCommitOffsetSizeError(MillraceError):
    """The offsets of a commit do not fit into one batch.

    All offsets of a commit are written as one batch to the offsets topic.
    """

    code = 28


class UnsupportedAssignorError(MillraceError):
    """The assignor does not exist."""

    code = 112


class NonEmptyGroupError(MillraceError):
    """The group has members: stop them first."""

    code = 68


class GroupIdNotFoundError(MillraceError):
    """The group does not exist."""

    code = 69


class MemberIdRequiredError(MillraceError):
    """Join again with the member id in the response."""

    code = 79


class GroupMaxSizeReachedError(MillraceError):
    """The group has ``group.max.size`` members already."""

    code = 81


class FencedInstanceIdError(MillraceError):
    """Another member with the same ``group.instance.id`` has taken over."""

    code = 82


class GroupSubscribedToTopicError(MillraceError):
    """The group is subscribed to the topic. Offsets of the topic cannot be deleted."""

    code = 86


class UnstableOffsetCommitError(MillraceError):
    """A transaction has offsets pending in this partition."""

    code = 88
    retriable = True


class FencedMemberEpochError(MillraceError):
    """The member's epoch is not the current one: join again."""

    code = 110


class UnreleasedInstanceIdError(MillraceError):
    """The present member with the same ``group.instance.id`` has not left."""

    code = 111


class StaleMemberEpochError(MillraceError):
    """The member's epoch has changed.

    The member sends a heartbeat and retries with the new epoch.
    """

    code = 113


class InvalidRecordStateError(MillraceError):
    """An acknowledged record is not, or no longer, acquired by this member."""

    code = 121


class ShareSessionNotFoundError(MillraceError):
    """The broker has no share session of this member.

    The member begins a new session.
    """

    code = 122
    retriable = True


class InvalidShareSessionEpochError(MillraceError):
    """A request of a share session was lost or overtaken.

    The member begins a new session.
    """

    code = 123
    retriable = True


class InvalidRegularExpressionError(MillraceError):
    """A regular expression, such as that of a subscription, is not valid."""

    code = 128


class ShareSessionLimitReachedError(MillraceError):
    """The broker has its maximum number of share sessions.

    The member begins its session later.
    """

    code = 133
    retriable = True


class CommitFailedError(MillraceError):
    """Offsets were not committed, because another member has the partitions."""

    code = 1060


class WakeupError(MillraceError):
    """``wakeup`` was called: the poll ended without records."""

    code = 1061


class ConcurrentUseError(MillraceError):
    """A consumer is in use in another thread.

    Only ``wakeup`` may be called from a second thread.
    """

    code = 1062
