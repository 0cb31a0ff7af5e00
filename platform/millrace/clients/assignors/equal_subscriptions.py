"""Sticky assignment of a group whose members all want the same topics: balanced to one, with the fewest moves.

Every member gets the same number of partitions, and some get one more where they do not divide. So it is known
beforehand how many a member may keep; the rest is dealt out to those who have too few.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from millrace.clients.assignors.group import Group
from millrace.clients.model import TopicPartition


def assign_equally(group: Group, owned: Sequence[Sequence[TopicPartition]]) -> list[list[TopicPartition]]:
    """Share out all partitions; ``owned`` are those that members hold now. A group has at least one member.

    Members keep the lowest numbers of what they hold, and get what was dealt to them after that.
    """
    partitions = group.partitions(sorted(group.partition_counts))
    fair_share, num_larger = divmod(len(partitions), len(group.member_ids))
    kept, growing = _keep(owned, fair_share, num_larger)
    taken = {partition for held in kept for partition in held}
    _deal(kept, growing, [partition for partition in partitions if partition not in taken], fair_share)
    return kept


def _keep(
    owned: Sequence[Sequence[TopicPartition]], fair_share: int, num_larger: int
) -> tuple[list[list[TopicPartition]], deque[int]]:
    """Let members keep what they may: what each keeps, and who of those with a fair share may get one more.

    The first ``num_larger`` members that hold more than a fair share keep one of it.
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


def _deal(
    kept: list[list[TopicPartition]], growing: deque[int], free: Sequence[TopicPartition], fair_share: int
) -> None:
    """Deal out what nobody holds: in turn to those who lack a fair share, then one more each to those who have it."""
    lacking = deque(member for member, held in enumerate(kept) if len(held) < fair_share)
    for partition in free:
        member = lacking.popleft() if lacking else growing.popleft()
        kept[member].append(partition)
        if len(kept[member]) < fair_share:
            lacking.append(member)
        elif len(kept[member]) == fair_share:
            growing.append(member)
