"""Assignment, leader and ISR of a partition, as data."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Final, NamedTuple, TypeVar

from millrace.errors import MillraceError

_T = TypeVar("_T")

NO_LEADER: Final = -1
LEADER_DURING_DELETE: Final = -2
"""The leader in requests for partitions of a topic in deletion, so that brokers refuse clients."""


class TopicPartition(NamedTuple):
    """A partition of a topic."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


def by_topic(partitions: Mapping[TopicPartition, _T]) -> dict[str, dict[int, _T]]:
    """Group a mapping by topic, then partition number."""
    found: dict[str, dict[int, _T]] = defaultdict(dict)
    for (topic, number), value in partitions.items():
        found[topic][number] = value
    return found


@dataclass(frozen=True, slots=True)
class ReplicaAssignment:
    """The replicas of a partition, the preferred leader first.

    During a reassignment these are all old and new replicas. ``adding`` are the new replicas, ``removing`` the old ones
    that it removes (KIP-455).
    """

    replicas: tuple[int, ...]
    adding: tuple[int, ...] = ()
    removing: tuple[int, ...] = ()

    @property
    def is_being_reassigned(self) -> bool:
        """True if a reassignment adds or removes replicas."""
        return bool(self.adding or self.removing)

    @property
    def origin(self) -> tuple[int, ...]:
        """The replicas before the reassignment, and again after its cancellation."""
        return tuple(each for each in self.replicas if each not in self.adding)

    @property
    def target(self) -> tuple[int, ...]:
        """The replicas after the reassignment."""
        return tuple(each for each in self.replicas if each not in self.removing)

    def reassigned_to(self, target: tuple[int, ...]) -> ReplicaAssignment:
        """Return the reassignment from the original replicas to ``target``."""
        full = tuple(dict.fromkeys((*target, *self.origin)))
        return ReplicaAssignment(
            full,
            tuple(each for each in full if each not in self.origin),
            tuple(each for each in full if each not in target),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Leadership:
    """The leader and the ISR of a partition, Kafka's ``LeaderAndIsr``.

    ``partition_epoch`` is the version of the partition's node in ZooKeeper. ``controller_epoch`` is that of the
    controller that decided. If ``leader`` is ``NO_LEADER``, the first replica of the ISR that comes back may lead.
    """

    leader: int
    leader_epoch: int
    isr: tuple[int, ...]
    partition_epoch: int
    controller_epoch: int

    def decided_anew(self, controller_epoch: int, *, leader: int, isr: tuple[int, ...]) -> Leadership:
        """Return a new decision of the controller, with the next leader epoch.

        The partition epoch stays the old one until the decision is written.
        """
        return replace(
            self, leader=leader, isr=isr, leader_epoch=self.leader_epoch + 1, controller_epoch=controller_epoch
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class IsrChange:
    """An ISR that a leader asks the controller to confirm.

    The request is valid only at this leader epoch and partition epoch. ``broker_epochs`` has the brokers that the
    change adds, with the broker epochs of their fetches (KIP-903). A broker without one has an earlier version.
    """

    isr: tuple[int, ...]
    leader_epoch: int
    partition_epoch: int
    broker_epochs: Mapping[int, int] = field(default_factory=dict)


Answers = Mapping[TopicPartition, MillraceError | None]
"""The error for each partition, or None."""
