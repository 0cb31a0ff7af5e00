"""Which members are near which partitions: those whose rack has a replica (KIP-881).

Racks are looked at only where they can make a difference, as by Kafka's assignors: some member is in a rack with
replicas, and not every partition has replicas in all racks that any has. Balance comes first, always.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from millrace.clients.assignors.model import PartitionRacks
from millrace.clients.model import TopicPartition

_NOWHERE = frozenset[str]()


def racks_matter(member_racks: Iterable[str], replica_racks: Collection[frozenset[str]]) -> bool:
    """Whether it makes a difference who of these members reads which of these partitions."""
    everywhere = _NOWHERE.union(*replica_racks)
    return any(rack in everywhere for rack in member_racks if rack) and any(
        racks != everywhere for racks in replica_racks
    )


@dataclass(frozen=True, slots=True)
class Nearness:
    """The racks of a group's members, by their numbers, and those of the replicas. Without racks all are near all."""

    member_racks: Sequence[str] = ()
    replica_racks: Mapping[TopicPartition, frozenset[str]] = field(default_factory=dict)

    @classmethod
    def of(cls, member_racks: Sequence[str], partitions: Iterable[TopicPartition], racks: PartitionRacks) -> Nearness:
        """Look at the partitions of a group; there is no nearness where racks do not matter."""
        replica_racks = {partition: racks.get(partition, _NOWHERE) for partition in partitions}
        if not racks_matter(member_racks, replica_racks.values()):
            return cls()
        return cls(member_racks, replica_racks)

    @property
    def matters(self) -> bool:
        """Whether racks are to be looked at."""
        return bool(self.member_racks)

    def allows(self, member: int, partition: TopicPartition) -> bool:
        """Whether the member is near the partition, or in no rack: then everything is as near."""
        rack = self.member_racks[member] if self.member_racks else ""
        return not rack or rack in self.replica_racks.get(partition, _NOWHERE)

    def is_near(self, member: int, partition: TopicPartition) -> bool:
        """Whether the member is in a rack with a replica of the partition."""
        rack = self.member_racks[member]
        return bool(rack) and rack in self.replica_racks[partition]

    def scarce_first(self, partitions: Sequence[TopicPartition]) -> list[TopicPartition]:
        """Those first that few members are near."""
        members = Counter(rack for rack in self.member_racks if rack)
        return sorted(partitions, key=lambda partition: sum(members[rack] for rack in self.replica_racks[partition]))
