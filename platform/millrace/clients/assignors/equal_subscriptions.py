"""Sticky assignment for members with equal subscriptions, balanced with the fewest moves.

Every member gets the same number of partitions, and some get one more if they do not divide. So the number that a
member may keep is known beforehand. The rest is assigned to members with too few. If racks matter, members keep only
near partitions, and near partitions are assigned first.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from millrace.clients.assignors.group import Group
from millrace.clients.assignors.racks import Nearness
from millrace.clients.model import TopicPartition


def assign_equally(group: Group, owned: Sequence[Sequence[TopicPartition]]) -> list[list[TopicPartition]]:
    """Assign all partitions; ``owned`` are the members' current ones. A group has at least one member.

    Members keep the lowest numbers of their partitions, and list new ones after them.
    """
    partitions = group.partitions(sorted(group.partition_counts))
    fair_share, num_larger = divmod(len(partitions), len(group.member_ids))
    nearness = group.nearness
    nearby = [[each for each in held if nearness.allows(member, each)] for member, held in enumerate(owned)]
    kept, growing = _keep(nearby if nearness.matters else owned, fair_share, num_larger)
    taken = {partition for held in kept for partition in held}
    free = [partition for partition in partitions if partition not in taken]
    lacking = [member for member, held in enumerate(kept) if len(held) < fair_share]
    if nearness.matters:
        larger_left = num_larger - sum(len(held) > fair_share for held in kept)
        free = _NearDealing(kept, lacking, growing, nearness, fair_share, larger_left).deal(free)
    _deal(kept, deque(lacking), growing, free, fair_share)
    return kept


def _keep(
    owned: Sequence[Sequence[TopicPartition]], fair_share: int, num_larger: int
) -> tuple[list[list[TopicPartition]], deque[int]]:
    """Return the partitions that each member keeps, and the members with a fair share that may get one more.

    The first ``num_larger`` members with more than a fair share keep one above it.
    """
    kept: list[list[TopicPartition]] = []
    growing: deque[int] = deque()
    for member, partitions in enumerate(owned):
        held = sorted(partitions, key=lambda partition: (partition.partition, partition.topic))
        if len(held) > fair_share and num_larger > 0:
            num_larger -= 1
            kept.append(held[: fair_share + 1])
            continue
        kept.append(held[:fair_share])
        if len(held) >= fair_share:
            growing.append(member)
    return kept, growing if num_larger else deque()


@dataclass(slots=True)
class _NearDealing:
    """Assignment of partitions to near members, as balanced as without racks.

    Members in ``lacking`` have less than a fair share. Members in ``growing`` have it and may get one more, while
    ``larger_left`` is positive.
    """

    kept: list[list[TopicPartition]]
    lacking: list[int]
    growing: deque[int]
    nearness: Nearness
    fair_share: int
    larger_left: int
    turn: int = 0

    def deal(self, free: Sequence[TopicPartition]) -> list[TopicPartition]:
        """Assign partitions, those with few near members first; returns the partitions that no near member can take."""
        return [partition for partition in self.nearness.scarce_first(free) if not self._deal_one(partition)]

    def _deal_one(self, partition: TopicPartition) -> bool:
        for step in range(len(self.lacking)):
            place = (self.turn + step) % len(self.lacking)
            if self.nearness.is_near(self.lacking[place], partition):
                self._give_to_lacking(place, partition)
                return True
        for member in self.growing:
            if self.nearness.is_near(member, partition):
                self._give_to_growing(member, partition)
                return True
        return False

    def _give_to_lacking(self, place: int, partition: TopicPartition) -> None:
        member = self.lacking[place]
        self.kept[member].append(partition)
        if len(self.kept[member]) >= self.fair_share:
            del self.lacking[place]
            if self.larger_left:
                self.growing.append(member)
        else:
            place += 1
        self.turn = place

    def _give_to_growing(self, member: int, partition: TopicPartition) -> None:
        self.kept[member].append(partition)
        self.growing.remove(member)
        self.larger_left -= 1
        if not self.larger_left:
            self.growing.clear()


def _deal(
    kept: list[list[TopicPartition]],
    lacking: deque[int],
    growing: deque[int],
    free: Sequence[TopicPartition],
    fair_share: int,
) -> None:
    """Assign the free partitions in turn to members below a fair share, then one more each to members with it."""
    for partition in free:
        member = lacking.popleft() if lacking else growing.popleft()
        kept[member].append(partition)
        if len(kept[member]) < fair_share:
            lacking.append(member)
        elif len(kept[member]) == fair_share:
            growing.append(member)
