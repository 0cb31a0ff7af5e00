"""What changed hands while a group was being balanced, so that no two members swap partitions of one topic.

Invariants: a partition is recorded from the member that had it first to the one that has it now, whatever hands it went
through between; one that came back to the first is not recorded.
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
        """What to move instead of ``partition``: one of its topic that went the opposite way, if there is one.

        Sending that one home makes up for both moves. ``source`` counts as the member that had ``partition`` first.
        """
        first_source = self._pair_of.get(partition, (source, source))[0]
        opposite = self._partitions.get((partition.topic, (target, first_source)))
        return next(iter(opposite)) if opposite else partition

    def record(self, partition: TopicPartition, source: int, target: int) -> None:
        """Take note that ``partition`` went from ``source`` to ``target``."""
        earlier = self._pair_of.pop(partition, None)
        if earlier is not None:
            key = (partition.topic, earlier)
            del self._partitions[key][partition]
            source = earlier[0]
        if source != target:
            pair = (source, target)
            self._pair_of[partition] = pair
            self._partitions.setdefault((partition.topic, pair), {})[partition] = None
