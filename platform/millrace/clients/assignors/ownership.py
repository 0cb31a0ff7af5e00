"""Who held what before a rebalance: members' claims, judged by the generation in which they got their partitions.

A member that missed a rebalance still claims what others may have got since. So of several claims to a partition the
one of the newest generation holds. Two of the same generation can't both be true, and neither holds. An older claim
that nobody contradicts does hold; one that lost is remembered as a *former* claim, for its member may get the partition
back at no cost to balance.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from millrace.clients.assignors.group import Group
from millrace.clients.model import TopicPartition


@dataclass(frozen=True, slots=True)
class Claim:
    """What a member says that it had, and the generation in which it got that; -1 where it does not tell."""

    partitions: Sequence[TopicPartition]
    generation: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Ownership:
    """What claims come to.

    ``owned`` has each member's valid claims in the order in which it made them, also to topics that it wants no more.
    ``claimed`` are all partitions that anybody claims. ``former`` has the member with the newest claim to each
    partition among those made in other generations than the newest one.
    """

    owned: Sequence[Sequence[TopicPartition]]
    claimed: frozenset[TopicPartition]
    former: dict[TopicPartition, int]


def judge(group: Group, claims: Sequence[Claim]) -> Ownership:
    """Decide between claims, which are in the order of the group's members. Partitions that are gone don't count."""
    newest: dict[TopicPartition, tuple[int, int | None]] = {}
    former: dict[TopicPartition, tuple[int, int]] = {}
    last_generation = max((claim.generation for claim in claims), default=-1)
    for member, claim in enumerate(claims):
        for partition in dict.fromkeys(filter(group.has, claim.partitions)):
            generation, _ = newest.get(partition, (None, None))
            if generation is None or claim.generation > generation:
                newest[partition] = (claim.generation, member)
            elif claim.generation == generation:
                newest[partition] = (claim.generation, None)
            if claim.generation < last_generation and (
                partition not in former or claim.generation > former[partition][0]
            ):
                former[partition] = (claim.generation, member)
    return Ownership(
        owned=[
            [
                partition
                for partition in dict.fromkeys(claim.partitions)
                if newest.get(partition, (0, None))[1] == member
            ]
            for member, claim in enumerate(claims)
        ],
        claimed=frozenset(newest),
        former={partition: member for partition, (_, member) in former.items()},
    )
