"""Assignor ``cooperative-sticky``: shares out as ``sticky`` does, in two rounds wherever partitions change hands.

Members go on reading what they hold while a rebalance is under way. So a partition that moves is assigned to nobody in
the first round: its owner sees that it is missing, lets go of it and joins again, and the new owner gets it in the
second round. At no time do two members read it (KIP-429).
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
        """Share out the partitions, except those that must first be given up by another member."""
        in_order = by_id(members)
        sticky = assign_sticky(partition_counts, in_order, [_claim(member) for member in in_order], racks)
        return {
            member_id: [partition for partition in partitions if partition not in sticky.transfers]
            for member_id, partitions in sticky.target.items()
        }

    def user_data(self, owned: Sequence[TopicPartition], generation: int) -> bytes | None:
        """The generation; None from a member that was in none yet."""
        return None if generation == NO_GENERATION else encode_cooperative(generation)


def _claim(member: MemberSubscription) -> Claim:
    """What the member holds, and since when: the consumer protocol's generation, in older versions the user data's."""
    is_told = member.generation > NO_GENERATION
    return Claim(member.owned_partitions, member.generation if is_told else decode_cooperative(member.user_data))
