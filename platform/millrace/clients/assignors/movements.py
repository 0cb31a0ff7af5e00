"""Moves during balancing, recorded so that no two members swap partitions of one topic.

Invariants: a partition is recorded from its first owner to its current owner, whatever owners came between. A
partition that returned to its first owner is not recorded.
"""

from __future__ import annotations

from millrace.clients.model import TopicPartition

_Pair = tuple[int, int]


class Movements:
    """Partitions moved so far, by topic and by the pair of members between which they moved."""

    __slots__ = ("_pair_of", "_partitions")

    def __init__(self) -> None:
        self._pair_of: dict[TopicPartition, _Pair] = {}
        self._partitions: dict[tuple[str, _Pair], dict[TopicPartition, None]] = {}

    def partition_to_move(self, partition: TopicPartition, source: int, target: int) -> TopicPartition:
        """Return the partition to move: one of the topic that moved the opposite way, if any, else ``partition``.

        Moving that one back replaces both moves. ``source`` counts as the first owner of ``partition`` unless it
        moved before.
        """
        first_source = self._pair_of.get(partition, (source, source))[0]
        opposite = self._partitions.get((partition.topic, (target, first_source)))
        return next(iter(opposite)) if opposite else partition

    def record(self, partition: TopicPartition, source: int, target: int) -> None:
        """Record that ``partition`` moved from ``source`` to ``target``."""
        earlier = self._pair_of.pop(partition, None)
        if earlier is not None:
            key = (partition.topic, earlier)
            del self._partitions[key][partition]
            source = earlier[0]
        if source != target:
            pair = (source, target)
            self._pair_of[partition] = pair
            self._partitions.setdefault((partition.topic, pair), {})[partition] = None
