"""Server-side assignors (KIP-848): ``range`` and ``uniform``.

Invariant of both: each partition of a subscribed topic has exactly one member, which subscribes to the topic.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final
from uuid import UUID

from millrace_broker.groups.consumer.members import NO_PARTITIONS, Partition, Partitions

Target = dict[str, Partitions]


@dataclass(frozen=True, slots=True, kw_only=True)
class AssignorInput:
    """Input of an assignor, Kafka's ``GroupSpec``.

    ``subscriptions`` has the topic ids of each member, and ``partition_counts`` the partition counts of topics.
    ``target`` is the target assignment so far. ``instance_ids`` has the instance ids of the static members.
    """

    subscriptions: Mapping[str, frozenset[UUID]]
    partition_counts: Mapping[UUID, int]
    target: Mapping[str, Partitions]
    instance_ids: Mapping[str, str]

    def subscribers(self) -> dict[UUID, tuple[str, ...]]:
        """Return the members of each topic: static members by instance id first, then others by member id."""

        def order(member_id: str) -> tuple[bool, str]:
            instance_id = self.instance_ids.get(member_id)
            return instance_id is None, instance_id or member_id

        found: dict[UUID, list[str]] = {topic: [] for topic in self.partition_counts}
        for member_id in sorted(self.subscriptions, key=order):
            for topic in self.subscriptions[member_id]:
                if topic in found:
                    found[topic].append(member_id)
        return {topic: tuple(members) for topic, members in found.items() if members}


def assign_ranges(given: AssignorInput) -> Target:
    """Give each member a contiguous range of each topic, so that topics with equal counts are co-partitioned."""
    target: dict[str, set[Partition]] = {member_id: set() for member_id in given.subscriptions}
    for topic, members in given.subscribers().items():
        share, extra = divmod(given.partition_counts[topic], len(members))
        first = 0
        for place, member_id in enumerate(members):
            end = first + share + (place < extra)
            target[member_id].update((topic, number) for number in range(first, end))
            first = end
    return _frozen(target)


def assign_uniformly(given: AssignorInput) -> Target:
    """Give all members an equal number of partitions, and move as few partitions as possible.

    Topics with the same subscribers are balanced together. Each move goes from a member to one that has at least two
    partitions less. So each move lowers the sum of the squared partition counts, and the loop ends.
    """
    subscribers = given.subscribers()
    target = {
        member_id: {
            (topic, number)
            for topic, number in given.target.get(member_id, NO_PARTITIONS)
            if topic in topics and number < given.partition_counts.get(topic, 0)
        }
        for member_id, topics in given.subscriptions.items()
    }
    kept = {partition for partitions in target.values() for partition in partitions}
    assert len(kept) == sum(map(len, target.values())), "a partition has two members in the target assignment"
    heaps: dict[tuple[str, ...], list[tuple[int, int, str]]] = {}
    # Topics with the fewest subscribers have the fewest choices, so they come first.
    for topic in sorted(subscribers, key=lambda topic: (len(subscribers[topic]), topic)):
        members = subscribers[topic]
        heap = heaps.setdefault(members, [(0, place, member_id) for place, member_id in enumerate(members)])
        for number in range(given.partition_counts[topic]):
            if (topic, number) not in kept:
                target[_least_loaded(heap, target)].add((topic, number))
    while any(_balance(members, subscribers, target) for members in heaps):
        pass
    return _frozen(target)


def _least_loaded(heap: list[tuple[int, int, str]], target: Mapping[str, set[Partition]]) -> str:
    """Return the member with fewest partitions. Loads only grow, so an entry's load is a lower bound."""
    while True:
        load, place, member_id = heap[0]
        if load == len(target[member_id]):
            return member_id
        heapq.heapreplace(heap, (len(target[member_id]), place, member_id))


def _balance(
    members: tuple[str, ...], subscribers: Mapping[UUID, tuple[str, ...]], target: Mapping[str, set[Partition]]
) -> bool:
    """Balance the topics that have exactly these subscribers; return whether a partition was moved."""
    movable = {
        member_id: sorted(partition for partition in target[member_id] if subscribers[partition[0]] == members)
        for member_id in members
    }
    has_moved = False
    while donors := [member_id for member_id in members if movable[member_id]]:
        donor = max(donors, key=lambda member_id: len(target[member_id]))
        receiver = min(members, key=lambda member_id: len(target[member_id]))
        if len(target[donor]) - len(target[receiver]) < 2:
            break
        partition = movable[donor].pop()
        target[donor].remove(partition)
        target[receiver].add(partition)
        movable[receiver].append(partition)
        has_moved = True
    return has_moved


def _frozen(target: Mapping[str, set[Partition]]) -> Target:
    return {member_id: frozenset(partitions) for member_id, partitions in target.items()}


ASSIGNORS: Final[Mapping[str, Callable[[AssignorInput], Target]]] = {
    "uniform": assign_uniformly,
    "range": assign_ranges,
}
"""Assignors by name; the first one is the default of ``group.consumer.assignors``."""
