"""The rules of leader elections. Pure.

Source: Kafka's ``PartitionLeaderElectionAlgorithms`` and ``Election``.
"""

from __future__ import annotations

import enum
from collections.abc import Collection
from dataclasses import dataclass

from millrace_broker.controller.context import ControllerContext
from millrace_broker.decisions import Leadership, TopicPartition


class Occasion(enum.Enum):
    """The reason of a leader election, which selects its rule."""

    OFFLINE = "offline"
    """There is no leader: elect the first assigned replica that is alive and in sync."""
    UNCLEAN = "unclean"
    """Like offline, but a replica that is not in sync if there is no other. Records may be lost."""
    REASSIGNMENT = "reassignment"
    PREFERRED = "preferred"
    CONTROLLED_SHUTDOWN = "controlled shutdown"


@dataclass(frozen=True, slots=True)
class Elected:
    """The result of an election; ``receivers`` are the brokers to notify."""

    leader: int
    isr: tuple[int, ...]
    receivers: tuple[int, ...]


def first_in_sync(replicas: Collection[int], isr: Collection[int], live: Collection[int]) -> int | None:
    """Return the first of ``replicas`` that is in sync and alive."""
    return next((each for each in replicas if each in isr and each in live), None)


def elect(
    context: ControllerContext, partition: TopicPartition, current: Leadership, occasion: Occasion
) -> Elected | None:
    """Elect a leader by the rule of the occasion; returns None when no replica may lead."""
    assignment = context.assignments[partition]
    match occasion:
        case Occasion.OFFLINE | Occasion.UNCLEAN:
            live = context.online_replicas(partition, assignment.replicas)
            leader = first_in_sync(assignment.replicas, current.isr, live)
            if leader is not None:
                return Elected(leader, context.online_replicas(partition, current.isr), live)
            if occasion is Occasion.UNCLEAN and live:
                return Elected(live[0], (live[0],), live)
            return None
        case Occasion.REASSIGNMENT:
            leader = first_in_sync(assignment.target, current.isr, context.online(partition))
            return None if leader is None else Elected(leader, current.isr, assignment.target)
        case Occasion.PREFERRED:
            leader = first_in_sync(assignment.replicas[:1], current.isr, context.online(partition))
            return None if leader is None else Elected(leader, current.isr, assignment.replicas)
        case Occasion.CONTROLLED_SHUTDOWN:
            staying = tuple(each for each in current.isr if each not in context.shutting_down)
            leader = first_in_sync(assignment.replicas, staying, context.online(partition))
            receivers = context.online_replicas(partition, assignment.replicas, with_shutting_down=True)
            return None if leader is None else Elected(leader, staying, receivers)
