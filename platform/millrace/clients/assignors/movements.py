"""Record of partition movements during balancing (Kafka's ``PartitionMovements``).

The record prevents that two members swap partitions of one topic. Invariants: a partition is recorded from its first
owner to its current owner, whatever owners came between. A partition that returned to its first owner is not recorded.
"""

from __future__ import annotations

from typing import Final

from millrace.clients.model import TopicPartition
from millrace.java_strings import java_hash

_Pair = tuple[int, int]


class Movements:
    """Partitions moved so far.

    They are stored by topic and by the pair of members between which they moved.
    """

    __slots__ = ("_pair_of", "_partitions")

    def __init__(self) -> None:
        self._pair_of: dict[TopicPartition, _Pair] = {}
        self._partitions: dict[tuple[str, _Pair], _Moved] = {}

    def partition_to_move(self, partition: TopicPartition, source: int, target: int) -> TopicPartition:
        """Return the partition to move: one of the topic that moved the opposite way, if any, else ``partition``.

        Moving that one back replaces both moves. ``source`` counts as the first owner of ``partition`` unless it
        moved before.
        """
        first_source = self._pair_of.get(partition, (source, source))[0]
        opposite = self._partitions.get((partition.topic, (target, first_source)))
        return opposite.first() if opposite is not None else partition

    def record(self, partition: TopicPartition, source: int, target: int) -> None:
        """Record that ``partition`` moved from ``source`` to ``target``."""
        earlier = self._pair_of.pop(partition, None)
        if earlier is not None:
            key = (partition.topic, earlier)
            moved = self._partitions[key]
            moved.remove(partition)
            if not moved:
                del self._partitions[key]
            source = earlier[0]
        if source != target:
            pair = (source, target)
            self._pair_of[partition] = pair
            self._partitions.setdefault((partition.topic, pair), _Moved(partition.topic)).add(partition)


class _Moved:
    """Partitions of a topic, with the first in Java's ``HashSet`` order.

    The balance does not depend on the partition that moves back. With this order the result is that of Kafka's client.
    """

    __slots__ = ("_buckets", "_hash", "_partitions")

    def __init__(self, topic: str) -> None:
        self._hash: Final = java_hash(topic)
        self._partitions: Final[dict[TopicPartition, None]] = {}
        self._buckets = 16

    def __len__(self) -> int:
        return len(self._partitions)

    def add(self, partition: TopicPartition) -> None:
        self._partitions[partition] = None
        if len(self._partitions) > self._buckets * 3 // 4:
            self._buckets *= 2

    def remove(self, partition: TopicPartition) -> None:
        del self._partitions[partition]

    def first(self) -> TopicPartition:
        """Return a partition of the first bucket; within it the one that was added first."""
        return min(self._partitions, key=self._bucket)

    def _bucket(self, partition: TopicPartition) -> int:
        hashed = (31 * (31 + partition.partition) + self._hash) & 0xFFFFFFFF
        return (hashed ^ hashed >> 16) & (self._buckets - 1)
