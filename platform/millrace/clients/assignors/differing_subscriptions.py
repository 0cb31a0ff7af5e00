"""Sticky assignment for members with different subscriptions, as balanced as they allow.

Members first keep the partitions that they may keep (only those of near racks, if racks matter). Unowned partitions
go to the member with the fewest, near members first. Then partitions move until no single move improves the balance.
Moves that leave the group no more balanced than before are discarded.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from heapq import heapify, heapreplace
from itertools import groupby
from operator import attrgetter

from millrace.clients.assignors.balancing import Balancer, Held
from millrace.clients.assignors.group import Group
from millrace.clients.assignors.ownership import Ownership
from millrace.clients.model import TopicPartition


def assign_differing(group: Group, ownership: Ownership) -> list[list[TopicPartition]]:
    """Assign all partitions; members list kept partitions first, then new ones."""
    held: Held = [
        {
            partition: None
            for partition in owned
            if group.may_hold(member, partition) and group.nearness.allows(member, partition)
        }
        for member, owned in enumerate(ownership.owned)
    ]
    is_fresh = not any(held)
    is_revoking = any(len(kept) < len(owned) for kept, owned in zip(held, ownership.owned, strict=True))
    scarce_first = sorted(group.subscribers, key=lambda topic: (len(group.subscribers[topic]), topic))
    taken = {partition for partitions in held for partition in partitions}
    free = [partition for partition in group.partitions(scarce_first) if partition not in taken]
    _hand_out(group, held, _hand_out_nearby(group, held, free) if group.nearness.matters else free)
    shared = frozenset(topic for topic, members in group.subscribers.items() if len(members) > 1)
    before = [dict(partitions) for partitions in held]
    balancer = Balancer(group, held, ownership.former)
    if not is_revoking:
        # Move new partitions before those that a member reads already.
        balancer.spread([partition for partition in free if partition.topic in shared])
    has_moved = balancer.spread(group.partitions([topic for topic in scarce_first if topic in shared]))
    if has_moved and not is_fresh:
        sharing = [member for member, topics in enumerate(group.topics) if topics & shared]
        if _imbalance(held, sharing) >= _imbalance(before, sharing):
            held = before
    return [list(partitions) for partitions in held]


def _hand_out_nearby(group: Group, held: Held, free: Iterable[TopicPartition]) -> list[TopicPartition]:
    """Give each partition to the near subscriber with the fewest; returns partitions without a near subscriber."""
    left = []
    for partition in free:
        nearby = [member for member in group.subscribers[partition.topic] if group.nearness.allows(member, partition)]
        if nearby:
            held[min(nearby, key=lambda member: (len(held[member]), member))][partition] = None
        else:
            left.append(partition)
    return left


def _hand_out(group: Group, held: Held, free: Iterable[TopicPartition]) -> None:
    """Give each partition to the subscriber with the fewest; the first one of equals."""
    for topic, partitions in groupby(free, key=attrgetter("topic")):
        candidates = [(len(held[member]), member) for member in group.subscribers[topic]]
        heapify(candidates)
        for partition in partitions:
            count, member = candidates[0]
            held[member][partition] = None
            heapreplace(candidates, (count + 1, member))


def _imbalance(held: Held, members: Sequence[int]) -> int:
    """Return a measure of the differences in partition counts over all pairs of members, for one total of partitions.

    The sum of the differences grows with it. In ascending order the count at index i is the larger one of i pairs, and
    the smaller one of the others.
    """
    return sum(place * count for place, count in enumerate(sorted(len(held[member]) for member in members)))
