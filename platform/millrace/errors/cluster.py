"""Errors of a cluster's brokers among themselves: the controller, replicas and their assignment."""

from __future__ import annotations

from millrace.errors.base import MillraceError


class ReplicaNotAvailableError(MillraceError):
    """This broker has no replica of the partition, or not any more."""

    code = 9
    retriable = True


class StaleControllerEpochError(MillraceError):
    """A request of a controller that another has replaced, or of an older decision of the same one."""

    code = 11


class NotEnoughReplicasAfterAppendError(MillraceError):
    """The records are in the leader's log, but fewer replicas than ``min.insync.replicas`` are in sync by now."""

    code = 20
    retriable = True


class InvalidReplicaAssignmentError(MillraceError):
    """A partition cannot be put on these brokers: unknown, named twice, too few, or not a rack for each."""

    code = 39


class NotControllerError(MillraceError):
    """This broker is not the controller (any more); ask the one that the metadata names."""

    code = 41
    retriable = True


class ReassignmentInProgressError(MillraceError):
    """Replicas of the partition are on their way already."""

    code = 60


class FetchSessionIdNotFoundError(MillraceError):
    """The leader has forgotten what this follower fetches: it says all of it anew."""

    code = 70
    retriable = True


class InvalidFetchSessionEpochError(MillraceError):
    """A request of a fetch session was lost, or overtaken: the follower says anew what it fetches."""

    code = 71
    retriable = True


class TopicDeletionDisabledError(MillraceError):
    """Topics cannot be deleted: ``delete.topic.enable`` is false."""

    code = 73


class StaleBrokerEpochError(MillraceError):
    """The request is of an earlier life of the broker: it has registered again since."""

    code = 77


class PreferredLeaderNotAvailableError(MillraceError):
    """The preferred replica is not alive or not in sync, so it cannot lead."""

    code = 80


class EligibleLeadersNotAvailableError(MillraceError):
    """No replica that is alive may lead the partition."""

    code = 83
    retriable = True


class ElectionNotNeededError(MillraceError):
    """The partition has the leader that the election would give it."""

    code = 84
    retriable = True


class NoReassignmentInProgressError(MillraceError):
    """There is no reassignment of the partition to cancel."""

    code = 85


class InvalidUpdateVersionError(MillraceError):
    """The partition's state has changed since the version that the request builds upon."""

    code = 95


class IneligibleReplicaError(MillraceError):
    """A replica that is shutting down or not alive cannot become in sync."""

    code = 107


class NewLeaderElectedError(MillraceError):
    """The change of the in-sync replicas was taken over, and the reassignment that waited for it has a new leader."""

    code = 108
