"""Assignor ``sticky``: best balance, then the fewest moved partitions.

Members revoke everything before a rebalance, so their previous partitions come only from their user data. The owned
partitions of the consumer protocol are ignored.
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
        """Assign the partitions; a member's kept partitions come before new ones."""
        in_order = by_id(members)
        claims = [decode_sticky(member.user_data) for member in in_order]
        return assign_sticky(partition_counts, in_order, claims, racks).target

    def user_data(self, owned: Sequence[TopicPartition], generation: int) -> bytes | None:
        """Return the member's partitions and generation as user data; None without a generation."""
        return None if generation == NO_GENERATION else encode_sticky(owned, generation)
