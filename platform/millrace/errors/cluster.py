"""Errors between brokers: controller, replicas and their assignment."""

from __future__ import annotations

from millrace.errors.base import MillraceError


class LogDirNotFoundError(MillraceError):
    """The broker has no log directory of this path."""

    code = 57


class ReplicaNotAvailableError(MillraceError):
    """This broker has no replica of the partition, or no longer has one."""

    code = 9
    retriable = True


class StaleControllerEpochError(MillraceError):
    """The request is from a replaced controller, or from an older decision of the same one."""

    code = 11


class NotEnoughReplicasAfterAppendError(MillraceError):
    """The records are in the leader's log, but fewer than ``min.insync.replicas`` replicas are in sync."""

    code = 20
    retriable = True


class InvalidReplicaAssignmentError(MillraceError):
    """A partition cannot be assigned to these brokers: unknown, duplicate, too few, or not enough racks."""

    code = 39


class NotControllerError(MillraceError):
    """This broker is not the controller, or no longer is; retry at the controller in the metadata."""

    code = 41
    retriable = True


class ReassignmentInProgressError(MillraceError):
    """The partition is already being reassigned."""

    code = 60


class FetchSessionIdNotFoundError(MillraceError):
    """The leader no longer has this fetch session; the follower starts a new session."""

    code = 70
    retriable = True


class InvalidFetchSessionEpochError(MillraceError):
    """A request of a fetch session was lost or overtaken; the follower starts a new session."""

    code = 71
    retriable = True


class TopicDeletionDisabledError(MillraceError):
    """Topics cannot be deleted: ``delete.topic.enable`` is false."""

    code = 73


class StaleBrokerEpochError(MillraceError):
    """The request has an earlier broker epoch: the broker has registered again since."""

    code = 77


class PreferredLeaderNotAvailableError(MillraceError):
    """The preferred replica is not alive or not in sync, so it cannot lead."""

    code = 80


class EligibleLeadersNotAvailableError(MillraceError):
    """No live replica may lead the partition."""

    code = 83
    retriable = True


class ElectionNotNeededError(MillraceError):
    """The partition already has the leader that the election would give it."""

    code = 84
    retriable = True


class NoReassignmentInProgressError(MillraceError):
    """There is no reassignment of the partition to cancel."""

    code = 85


class InvalidUpdateVersionError(MillraceError):
    """The partition's state has changed since the version in the request."""

    code = 95


class IneligibleReplicaError(MillraceError):
    """A replica that is shutting down or not alive cannot join the ISR."""

    code = 107


class NewLeaderElectedError(MillraceError):
    """The ISR change was applied, and the reassignment that waited for it has a new leader."""

    code = 108
