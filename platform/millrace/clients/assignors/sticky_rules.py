"""Common rules of the sticky assignors: claims, assignment and transfers.

The rules are those of Kafka 3.9 (KIP-54, KIP-341, KIP-429, KIP-792), except for three flaws there. First, partitions
that a topic no longer has (it was created again with fewer) have no owner, while Kafka may then assign others twice.
Second, a former owner gets a partition back only if it still subscribes to the topic. Third, the outcome of
contradicting claims does not depend on the order of the members.

The assignors were compared with Kafka 3.9.1 in 6,000 random rebalances with missed generations and contradicting
claims. The lists of ``cooperative-sticky`` differed in two cases only. In one, Kafka assigned to a member without a
subscription. In the other, several members of an old generation claimed a partition that a newer one owns. Kafka takes
it from its owner if its hash map has the old members first. The outcome here is that of Kafka with the newest
generation first, which keeps as many partitions or more (``conformance/test_assignors_claims.py``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from millrace.clients.assignors.differing_subscriptions import assign_differing
from millrace.clients.assignors.equal_subscriptions import assign_equally
from millrace.clients.assignors.group import Group
from millrace.clients.assignors.model import NO_RACKS, Assignment, MemberSubscription, PartitionRacks
from millrace.clients.assignors.ownership import Claim, judge
from millrace.clients.model import TopicPartition


@dataclass(frozen=True, slots=True)
class StickyAssignment:
    """Result of a sticky assignment.

    ``target`` has the partitions of every member. ``transfers`` are those partitions that another member may still own.
    """

    target: Assignment
    transfers: frozenset[TopicPartition]


def assign_sticky(
    partition_counts: Mapping[str, int],
    members: Sequence[MemberSubscription],
    claims: Sequence[Claim],
    racks: PartitionRacks = NO_RACKS,
) -> StickyAssignment:
    """Assign partitions. ``members`` are in the order of ``by_id``, and ``claims`` in the same order."""
    if not members:
        return StickyAssignment({}, frozenset())
    group = Group.of(partition_counts, members, racks)
    ownership = judge(group, claims)
    if group.is_uniform:
        target = assign_equally(group, ownership.owned)
        remaining = ownership.owned
    else:
        target = assign_differing(group, ownership)
        # As in Kafka, a member that claims a partition does not wait for it, even if the claim is from an older
        # generation.
        remaining = [claim.partitions for claim in claims]
    transfers = frozenset(
        partition
        for partitions, had in zip(target, map(frozenset, remaining), strict=True)
        for partition in partitions
        if partition in ownership.claimed and partition not in had
    )
    return StickyAssignment(dict(zip(group.member_ids, target, strict=True)), transfers)
