"""Ownership before a rebalance, from members' claims and their generations.

A member that missed a rebalance still claims partitions that others may have got since. So the claim of the newest
generation is valid. Two claims of the same generation contradict each other, and neither is valid. An older claim
without contradiction is valid. A refused older claim is kept as a *former* claim, because its member may get the
partition back at no cost to balance.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from millrace.clients.assignors.group import Group
from millrace.clients.model import TopicPartition


@dataclass(frozen=True, slots=True)
class Claim:
    """Partitions that a member claims, and their generation; -1 if unknown."""

    partitions: Sequence[TopicPartition]
    generation: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Ownership:
    """Result of judging the claims.

    ``owned`` has each member's valid claims in their order, also for topics without its subscription. ``claimed`` are
    all claimed partitions. ``former`` maps each partition to the member with its newest claim from a generation
    before the newest one.
    """

    owned: Sequence[Sequence[TopicPartition]]
    claimed: frozenset[TopicPartition]
    former: dict[TopicPartition, int]


def judge(group: Group, claims: Sequence[Claim]) -> Ownership:
    """Judge claims in the order of the group's members. Claims of deleted partitions are ignored."""
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
