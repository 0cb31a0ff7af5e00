"""Assignor ``cooperative-sticky``: the result of ``sticky`` in two rounds.

Members continue to read their partitions during a rebalance. So a partition that moves is assigned to no member in
the first round. Its owner notices that it is missing, revokes it and joins again; the new owner gets it in the second
round. No two members ever read it at the same time (KIP-429).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from millrace.clients.assignors.group import by_id
from millrace.clients.assignors.model import NO_GENERATION, NO_RACKS, Assignment, MemberSubscription, PartitionRacks
from millrace.clients.assignors.ownership import Claim
from millrace.clients.assignors.sticky_rules import assign_sticky
from millrace.clients.assignors.sticky_user_data import decode_cooperative, encode_cooperative
from millrace.clients.model import TopicPartition


@dataclass(frozen=True, slots=True)
class CooperativeStickyAssignor:
    """Assignor ``cooperative-sticky``; see the module."""

    name: str = "cooperative-sticky"
    is_cooperative: bool = True

    def assign(
        self,
        partition_counts: Mapping[str, int],
        members: Sequence[MemberSubscription],
        racks: PartitionRacks = NO_RACKS,
    ) -> Assignment:
        """Assign the partitions, except those that another member must revoke first."""
        in_order = by_id(members)
        sticky = assign_sticky(partition_counts, in_order, [_claim(member) for member in in_order], racks)
        return {
            member_id: [partition for partition in partitions if partition not in sticky.transfers]
            for member_id, partitions in sticky.target.items()
        }

    def user_data(self, owned: Sequence[TopicPartition], generation: int) -> bytes | None:
        """Return the generation as user data; None from a member without one."""
        return None if generation == NO_GENERATION else encode_cooperative(generation)


def _claim(member: MemberSubscription) -> Claim:
    """Return the member's partitions and their generation, from the consumer protocol or, in older versions, the user
    data.
    """
    is_told = member.generation > NO_GENERATION
    return Claim(member.owned_partitions, member.generation if is_told else decode_cooperative(member.user_data))
