"""Errors of topics and partitions."""

from __future__ import annotations

from millrace.errors.base import MillraceError


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
