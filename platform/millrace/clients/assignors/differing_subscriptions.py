"""Sticky assignment of a group whose members want different topics: as balanced as their wishes allow.

Members keep what they may (where racks matter, what is near), what nobody holds goes to whoever holds least, near
members first, then partitions move until no single move
helps. Moves that in the end leave the group no more balanced than before are not made at all.
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
    """Share out all partitions. Members have first what they keep, then what they got, in that order."""
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
        # New partitions are moved rather than ones that somebody reads already.
        balancer.spread([partition for partition in free if partition.topic in shared])
    has_moved = balancer.spread(group.partitions([topic for topic in scarce_first if topic in shared]))
    if has_moved and not is_fresh:
        sharing = [member for member, topics in enumerate(group.topics) if topics & shared]
        if _imbalance(held, sharing) >= _imbalance(before, sharing):
            held = before
    return [list(partitions) for partitions in held]


def _hand_out_nearby(group: Group, held: Held, free: Iterable[TopicPartition]) -> list[TopicPartition]:
    """Give each partition to the subscriber that holds least of those it is near to; returns what nobody is near."""
    left = []
    for partition in free:
        nearby = [member for member in group.subscribers[partition.topic] if group.nearness.allows(member, partition)]
        if nearby:
            held[min(nearby, key=lambda member: (len(held[member]), member))][partition] = None
        else:
            left.append(partition)
    return left


def _hand_out(group: Group, held: Held, free: Iterable[TopicPartition]) -> None:
    """Give each partition to the subscriber that holds least; of those who hold as little, the first."""
    for topic, partitions in groupby(free, key=attrgetter("topic")):
        candidates = [(len(held[member]), member) for member in group.subscribers[topic]]
        heapify(candidates)
        for partition in partitions:
            count, member = candidates[0]
            held[member][partition] = None
            heapreplace(candidates, (count + 1, member))


def _imbalance(held: Held, members: Sequence[int]) -> int:
    """By how many partitions members differ, summed over all pairs of them; 0 if all hold the same number."""
    counts = sorted(len(held[member]) for member in members)
    # In ascending order the count at place i is the larger one of i pairs, and the smaller one of the others.
    return sum(count * (2 * place - len(counts) + 1) for place, count in enumerate(counts))
