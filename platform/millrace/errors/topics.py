"""Errors of topics and partitions."""

from __future__ import annotations

from millrace.errors.base import MillraceError


class UnknownTopicOrPartitionError(MillraceError):
    """The topic, or the partition of the topic, does not exist."""

    code = 3
    retriable = True


class InvalidTopicError(MillraceError):
    """A topic name breaks the naming rule.

    A name has 1 to 249 of the characters ``[a-zA-Z0-9._-]``, and is not ``.`` or ``..``.
    """

    code = 17


class TopicExistsError(MillraceError):
    """A topic with that name already exists."""

    code = 36


class InvalidPartitionsError(MillraceError):
    """A partition count is not positive, too large, or not an increase."""

    code = 37


class InvalidReplicationFactorError(MillraceError):
    """The replication factor exceeds the live brokers, or is below one."""

    code = 38


class InvalidConfigError(MillraceError):
    """A configuration key is unknown or its value is not acceptable."""

    code = 40


class PolicyViolationError(MillraceError):
    """The request violates a policy.

    Examples are the deletion of records in a topic that is only compacted, and a topic of more than 10,000 partitions.
    """

    code = 44


class UnknownTopicIdError(MillraceError):
    """No topic has that id.

    The topic was deleted, and perhaps created again under the same name.
    """

    code = 100


class InconsistentTopicIdError(MillraceError):
    """The topic of that name has another id than the caller's.

    The topic was deleted and created again.
    """

    code = 103
