"""What a controller decides of a partition, as data: who has it, who leads it, who is in sync."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

from millrace.errors import MillraceError

NO_LEADER: Final = -1
LEADER_DURING_DELETE: Final = -2
"""What brokers are told of partitions that are being deleted, so that they refuse clients."""


class TopicPartition(NamedTuple):
    """A partition of a topic."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


@dataclass(frozen=True, slots=True)
class ReplicaAssignment:
    """Who has a partition, the preferred leader first. While it is being reassigned all old and new replicas have it.

    ``adding`` are those that come, ``removing`` those that go (KIP-455).
    """

    replicas: tuple[int, ...]
    adding: tuple[int, ...] = ()
    removing: tuple[int, ...] = ()

    @property
    def is_being_reassigned(self) -> bool:
        """Whether replicas come or go."""
        return bool(self.adding or self.removing)

    @property
    def origin(self) -> tuple[int, ...]:
        """Who had it before, and has it again when the reassignment is cancelled."""
        return tuple(each for each in self.replicas if each not in self.adding)

    @property
    def target(self) -> tuple[int, ...]:
        """Who is to have it in the end."""
        return tuple(each for each in self.replicas if each not in self.removing)

    def reassigned_to(self, target: tuple[int, ...]) -> ReplicaAssignment:
        """The way from where it was before any reassignment to ``target``."""
        full = tuple(dict.fromkeys((*target, *self.origin)))
        return ReplicaAssignment(
            full,
            tuple(each for each in full if each not in self.origin),
            tuple(each for each in full if each not in target),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Leadership:
    """Who leads a partition and is in sync with it; ``partition_epoch`` is the version of its node in ZooKeeper.

    ``controller_epoch`` is that of the controller that decided it. ``leader`` may be ``NO_LEADER``; then the ISR has
    those of whom the first to come back may lead.
    """

    leader: int
    leader_epoch: int
    isr: tuple[int, ...]
    partition_epoch: int
    controller_epoch: int

    def decided_anew(self, controller_epoch: int, *, leader: int, isr: tuple[int, ...]) -> Leadership:
        """A decision of the controller: the leader epoch grows. The partition epoch is known once it is written."""
        return replace(
            self, leader=leader, isr=isr, leader_epoch=self.leader_epoch + 1, controller_epoch=controller_epoch
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class IsrChange:
    """The ISR that a leader asks the controller for, if the epochs are still those."""

    isr: tuple[int, ...]
    leader_epoch: int
    partition_epoch: int


Answers = Mapping[TopicPartition, MillraceError | None]
"""Of each partition the error that it was refused with, or None."""
