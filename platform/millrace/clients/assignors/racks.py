"""Rack awareness of assignors (KIP-881).

A member is near a partition with a replica in its rack. As in Kafka's assignors, racks count only if they make a
difference. Some member must be in a rack with replicas, and not every partition may have replicas in all these racks.
Balance always has priority.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from millrace.clients.assignors.model import PartitionRacks
from millrace.clients.model import TopicPartition

_NOWHERE = frozenset[str]()


def racks_matter(member_racks: Iterable[str], replica_racks: Collection[frozenset[str]]) -> bool:
    """Return whether racks make a difference for these members and partitions."""
    everywhere = _NOWHERE.union(*replica_racks)
    return any(rack in everywhere for rack in member_racks if rack) and any(
        racks != everywhere for racks in replica_racks
    )


@dataclass(frozen=True, slots=True)
class Nearness:
    """Racks of a group's members, by their numbers, and of the replicas. Without racks every member is near."""

    member_racks: Sequence[str] = ()
    replica_racks: Mapping[TopicPartition, frozenset[str]] = field(default_factory=dict)

    @classmethod
    def of(cls, member_racks: Sequence[str], partitions: Iterable[TopicPartition], racks: PartitionRacks) -> Nearness:
        """Create the nearness of a group; it is empty if racks do not matter."""
        replica_racks = {partition: racks.get(partition, _NOWHERE) for partition in partitions}
        if not racks_matter(member_racks, replica_racks.values()):
            return cls()
        return cls(member_racks, replica_racks)

    @property
    def matters(self) -> bool:
        """True if racks make a difference."""
        return bool(self.member_racks)

    def allows(self, member: int, partition: TopicPartition) -> bool:
        """Return whether the member is near the partition, or has no rack."""
        rack = self.member_racks[member] if self.member_racks else ""
        return not rack or rack in self.replica_racks.get(partition, _NOWHERE)

    def is_near(self, member: int, partition: TopicPartition) -> bool:
        """Return whether the member's rack has a replica of the partition."""
        rack = self.member_racks[member]
        return bool(rack) and rack in self.replica_racks[partition]

    def scarce_first(self, partitions: Sequence[TopicPartition]) -> list[TopicPartition]:
        """Sort partitions by their number of near members."""
        members = Counter(rack for rack in self.member_racks if rack)
        return sorted(partitions, key=lambda partition: sum(members[rack] for rack in self.replica_racks[partition]))
