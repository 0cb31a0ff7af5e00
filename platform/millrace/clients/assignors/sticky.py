"""Assignor ``sticky``: as balanced as possible, and with that as few partitions as possible change hands.

Members give up everything before a rebalance, so what they had comes from their user data alone; what the consumer
protocol says that they own is not looked at.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from millrace.clients.assignors.group import by_id
from millrace.clients.assignors.model import NO_GENERATION, NO_RACKS, Assignment, MemberSubscription, PartitionRacks
from millrace.clients.assignors.sticky_rules import assign_sticky
from millrace.clients.assignors.sticky_user_data import decode_sticky, encode_sticky
from millrace.clients.model import TopicPartition


@dataclass(frozen=True, slots=True)
class StickyAssignor:
    """Assignor ``sticky``; see the module."""

    name: str = "sticky"
    is_cooperative: bool = False

    def assign(
        self,
        partition_counts: Mapping[str, int],
        members: Sequence[MemberSubscription],
        racks: PartitionRacks = NO_RACKS,
    ) -> Assignment:
        """Share out the partitions; what a member keeps comes before what is new to it."""
        in_order = by_id(members)
        claims = [decode_sticky(member.user_data) for member in in_order]
        return assign_sticky(partition_counts, in_order, claims, racks).target

    def user_data(self, owned: Sequence[TopicPartition], generation: int) -> bytes | None:
        """What the member had and in which generation; None from one that was in none yet."""
        return None if generation == NO_GENERATION else encode_sticky(owned, generation)
