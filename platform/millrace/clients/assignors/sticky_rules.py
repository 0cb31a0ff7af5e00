"""What both sticky assignors share: judging claims, choosing the way to share out, and what is new to whom.

The rules are those of Kafka 3.9 (KIP-54, KIP-341, KIP-429, KIP-792). They differ in three points, each a flaw there:
partitions that a topic has no more (it was created again with fewer) are nobody's, while Kafka may then assign others
twice; a former owner gets a partition back only if it still subscribes to the topic; and where claims contradict each
other the outcome does not hang on the order in which members are looked at.

Beside Kafka 3.9.1 in 65,000 random rebalances, with missed generations and contradicting claims, ``cooperative-sticky``
kept no partition that Kafka moved. Lists were equal but where Kafka assigned to a member that was not subscribed
(``conformance/test_assignors_claims.py``), and where its choice hangs on the order of a Java hash map: members in the
order of their names are one such order, so both choices are Kafka's.
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
    """What every member shall hold in the end, and which of it another member may still be holding."""

    target: Assignment
    transfers: frozenset[TopicPartition]


def assign_sticky(
    partition_counts: Mapping[str, int],
    members: Sequence[MemberSubscription],
    claims: Sequence[Claim],
    racks: PartitionRacks = NO_RACKS,
) -> StickyAssignment:
    """Share out partitions. ``members`` are in the order of ``by_id`` and ``claims`` theirs."""
    if not members:
        return StickyAssignment({}, frozenset())
    group = Group.of(partition_counts, members, racks)
    ownership = judge(group, claims)
    if group.is_uniform:
        target = assign_equally(group, ownership.owned)
        remaining = ownership.owned
    else:
        target = assign_differing(group, ownership)
        # As in Kafka, a member that claims a partition is not made to wait for it here, not even when it claims it
        # from an older generation.
        remaining = [claim.partitions for claim in claims]
    transfers = frozenset(
        partition
        for partitions, had in zip(target, map(frozenset, remaining), strict=True)
        for partition in partitions
        if partition in ownership.claimed and partition not in had
    )
    return StickyAssignment(dict(zip(group.member_ids, target, strict=True)), transfers)
