"""Balancing of a group by moving partitions until no move improves it.

Invariants: every partition has one owner, and ``owner_of[p] == m`` exactly if ``p in held[m]``. ``_ranking`` has
(number of partitions, member) of every member once, ascending.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Mapping, Sequence

from millrace.clients.assignors.group import Group
from millrace.clients.assignors.movements import Movements
from millrace.clients.model import TopicPartition

Held = list[dict[TopicPartition, None]]
"""Partitions of each member; a dict is a set that keeps the order of insertion."""


class Balancer:
    """State of a group while it is being balanced.

    A partition moves if its owner holds at least two more than another subscriber of its topic. It moves to its
    former owner if that is such a member, else to the one with the fewest partitions.
    """

    __slots__ = ("_former", "_group", "_movements", "_owner_of", "_ranking", "held")

    def __init__(self, group: Group, held: Held, former: Mapping[TopicPartition, int]) -> None:
        self.held = held
        self._group = group
        self._former = former
        self._movements = Movements()
        self._owner_of = {partition: member for member, partitions in enumerate(held) for partition in partitions}
        self._ranking = sorted((len(partitions), member) for member, partitions in enumerate(held))

    def spread(self, partitions: Sequence[TopicPartition]) -> bool:
        """Move those of ``partitions`` that improve the balance; returns whether any moved.

        The loop continues as long as partitions move. The limit is for safety: ``Movements`` may return another
        partition to its former owner instead, which can undo some balance. So termination is not proven.
        """
        has_moved = False
        for _ in range(len(partitions) + 1):
            if not sum(map(self._improve, partitions)):
                break
            has_moved = True
        return has_moved

    def _improve(self, partition: TopicPartition) -> bool:
        """Move the partition, or one instead of it, if that improves the balance."""
        owner = self._owner_of[partition]
        target = self._better_owner(partition, owner)
        if target is None:
            return False
        moving = self._movements.partition_to_move(partition, owner, target)
        self._movements.record(moving, self._owner_of[moving], target)
        self._move(moving, target)
        return True

    def _better_owner(self, partition: TopicPartition, owner: int) -> int | None:
        most = len(self.held[owner]) - 2
        former = self._former.get(partition)
        if former is not None and len(self.held[former]) <= most and self._group.may_hold(former, partition):
            return former
        for count, member in self._ranking:
            if count > most:
                break
            if self._group.may_hold(member, partition):
                return member
        return None

    def _move(self, partition: TopicPartition, target: int) -> None:
        source = self._owner_of[partition]
        for member in (source, target):
            del self._ranking[bisect_left(self._ranking, (len(self.held[member]), member))]
        del self.held[source][partition]
        self.held[target][partition] = None
        self._owner_of[partition] = target
        for member in (source, target):
            insort(self._ranking, (len(self.held[member]), member))
