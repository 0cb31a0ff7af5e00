"""Errors between brokers: controller, replicas and their assignment."""

from __future__ import annotations

from millrace.errors.base import MillraceError


class LogDirNotFoundError(MillraceError):
    """The broker has no log directory of this path."""

    code = 57


class ReplicaNotAvailableError(MillraceError):
    """This broker does not have, or no longer has, the partition's replica."""

    code = 9
    retriable = True


class StaleControllerEpochError(MillraceError):
    """The request is out of date.

    A replaced controller sent it, or the same controller has made a newer decision.
    """

    code = 11


class NotEnoughReplicasAfterAppendError(MillraceError):
    """Too few replicas are in sync to acknowledge the appended records.

    The records are in the leader's log, but fewer than ``min.insync.replicas`` replicas are in sync.
    """

    code = 20
    retriable = True


class InvalidReplicaAssignmentError(MillraceError):
    """A partition cannot be assigned to these brokers.

    A broker is unknown, not alive or named twice, or only some brokers have a rack. Other reasons are partitions with
    different numbers of replicas, and an ISR that would lose all its members.
    """

    code = 39


class NotControllerError(MillraceError):
    """This broker is not the controller, or no longer is.

    The caller retries at the controller that the metadata names.
    """

    code = 41
    retriable = True


class ReassignmentInProgressError(MillraceError):
    """The partition is already being reassigned."""

    code = 60


class FetchSessionIdNotFoundError(MillraceError):
    """The leader no longer has this fetch session.

    The follower starts a new session.
    """

    code = 70
    retriable = True


class InvalidFetchSessionEpochError(MillraceError):
    """A request of a fetch session was lost or overtaken.

    The follower starts a new session.
    """

    code = 71
    retriable = True


class FetchSessionTopicIdError(MillraceError):
    """The request and its fetch session name topics in different ways.

    One has names, and the other has topic ids. The client starts a new session.
    """

    code = 106
    retriable = True


class TopicDeletionDisabledError(MillraceError):
    """Topics cannot be deleted: ``delete.topic.enable`` is false."""

    code = 73


class StaleBrokerEpochError(MillraceError):
    """The request has an earlier broker epoch.

    The broker has registered again since.
    """

    code = 77


class PreferredLeaderNotAvailableError(MillraceError):
    """The preferred replica is not alive or not in sync.

    Therefore the preferred replica cannot lead.
    """

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
    """A replica cannot join the ISR.

    The replica is not alive, is shutting down, or has lost its disk.
    """

    code = 107


class NewLeaderElectedError(MillraceError):
    """The ISR change was applied, but the partition has a new leader.

    The reassignment that waited for the ISR change caused the new leader's election.
    """

    code = 108
