"""A stream's offsets in Spark's checkpoint.

The JSON is that of Spark's Kafka connector, ``{"orders": {"0": 12, "1": 7}}``: the next offset of each partition.
Besides the topics it has these keys, which are no valid topic names:

* ``@topic-ids``  the id of each topic, to detect a deleted and recreated topic (KIP-516);
* ``@cluster`` the id of the cluster, to distinguish another cluster from recreated topics;
* ``@initial``    true in the first offsets of a new query. Spark logs them as the end of its first batch if that batch
  has no records. They are no end of any other batch, so a batch that ends there has none, wherever it starts;
* ``@from``       in the end of the first batch: the offsets at which it starts;
* ``@leader-epochs``  the last leader epoch of each log at planning. It detects a log that lost records already read and
  has grown again since (``log_divergence``). Checkpoints of older versions lack it;
* ``@parted``     in the end of the next batch after such a loss: the offsets at which it starts in these logs;
* ``@reset``      true in offsets that ``millrace offsets reset`` wrote to the checkpoint. They are the end of a batch
  without records, whatever offsets lie between.

``@from`` exists because Spark logs only the end of a batch. When a query fails in its first batch, Spark requests the
initial offsets again and replays the batch up to the logged end. By then "latest" has moved, and the records in between
would be skipped silently. Spark's Kafka source keeps its initial offsets in the checkpoint directory for this purpose,
but Spark does not pass that directory to a Python source.

Invariants: equal offsets give the same JSON, key for key, because Spark compares the text. A partition's next offset
never decreases from one batch to the next, except if its topic's id changed or its log lost records already read.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from millrace.errors import UsageError
from millrace.ids import id_text, parse_id
from pyspark_millrace.partition_key import PartitionKey

_TOPIC_IDS: Final = "@topic-ids"
_CLUSTER: Final = "@cluster"
_INITIAL: Final = "@initial"
_FROM: Final = "@from"
_LEADER_EPOCHS: Final = "@leader-epochs"
_DIVERGED: Final = "@parted"
_RESET: Final = "@reset"


@dataclass(frozen=True, slots=True)
class StreamOffsets:
    """Position in a stream: next offset of each partition, and topic ids."""

    next_offsets: Mapping[PartitionKey, int]
    topic_ids: Mapping[str, uuid.UUID]
    is_initial: bool = False
    started_from: Mapping[PartitionKey, int] | None = None
    is_reset: bool = False
    cluster_id: str | None = None
    leader_epochs: Mapping[PartitionKey, int] = field(default_factory=dict)
    diverged: Mapping[PartitionKey, int] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Return the form that Spark writes to the checkpoint and shows in progress reports."""
        value: dict[str, Any] = _nested(self.next_offsets)
        value[_TOPIC_IDS] = {topic: id_text(self.topic_ids[topic]) for topic in sorted(self.topic_ids)}
        if self.cluster_id is not None:
            value[_CLUSTER] = self.cluster_id
        if self.is_initial:
            value[_INITIAL] = True
        if self.started_from is not None:
            value[_FROM] = _nested(self.started_from)
        if self.leader_epochs:
            value[_LEADER_EPOCHS] = _nested(self.leader_epochs)
        if self.diverged:
            value[_DIVERGED] = _nested(self.diverged)
        if self.is_reset:
            value[_RESET] = True
        return value

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> StreamOffsets:
        """Parse the output of ``to_json``. Raises ``UsageError`` for offsets of another source."""
        try:
            return cls(
                next_offsets=_flat({topic: value[topic] for topic in value if not topic.startswith("@")}),
                topic_ids={topic: parse_id(text) for topic, text in value[_TOPIC_IDS].items()},
                is_initial=bool(value.get(_INITIAL, False)),
                started_from=_flat(value[_FROM]) if _FROM in value else None,
                is_reset=bool(value.get(_RESET, False)),
                cluster_id=value.get(_CLUSTER),
                leader_epochs=_flat(value.get(_LEADER_EPOCHS, {})),
                diverged=_flat(value.get(_DIVERGED, {})),
            )
        except (KeyError, ValueError, AttributeError, TypeError):
            raise UsageError(
                f"the checkpoint's offsets {dict(value)} belong to another source, not to millrace: "
                "give the query a checkpoint of its own"
            ) from None

    def advanced_to(
        self,
        next_offsets: Mapping[PartitionKey, int],
        topic_ids: Mapping[str, uuid.UUID],
        cluster_id: str | None = None,
        leader_epochs: Mapping[PartitionKey, int] | None = None,
        diverged: Mapping[PartitionKey, int] | None = None,
    ) -> StreamOffsets:
        """Return the end of a batch that starts here, or at ``diverged``; returns self if there is nothing to read."""
        is_here = dict(next_offsets) == dict(self.next_offsets) and dict(topic_ids) == dict(self.topic_ids)
        if is_here and not diverged:
            return self
        return StreamOffsets(
            next_offsets,
            topic_ids,
            started_from=self.next_offsets if self.is_initial else None,
            cluster_id=cluster_id or self.cluster_id,
            leader_epochs={key: epoch for key, epoch in (leader_epochs or {}).items() if key in next_offsets},
            diverged=diverged or {},
        )


@dataclass(frozen=True, slots=True)
class OffsetRange:
    """Range of offsets of one partition, from ``start`` to ``end`` (exclusive).

    ``topic_id`` is the id of the partition's topic.
    """

    key: PartitionKey
    topic_id: uuid.UUID
    start: int
    end: int

    @property
    def count(self) -> int:
        """Number of offsets in the range. Compacted offsets are counted too."""
        return max(0, self.end - self.start)


def ranges_between(start: StreamOffsets, end: StreamOffsets) -> list[OffsetRange]:
    """Return the offset ranges between two points of a stream, in order of topic and partition.

    A partition that is absent from ``start`` begins at 0, as does every partition of a recreated topic. A partition
    whose log lost records already read begins at its offset in ``end.diverged``.

    A batch that ends at initial offsets has no ranges: when Spark repeats it, "latest" may have moved beyond them. A
    batch that ends at reset offsets has none either. Offsets that the reset skips are not read; offsets that it goes
    back to are read by the next batch.
    """
    if end.is_initial or end.is_reset or end == start:
        return []
    begin = {**start.next_offsets, **end.diverged}
    if start.is_initial and end.started_from is not None:
        begin = dict(end.started_from)
    ranges = []
    for key, end_offset in sorted(end.next_offsets.items()):
        topic_id = end.topic_ids[key.topic]
        same_topic = start.topic_ids.get(key.topic, topic_id) == topic_id
        start_offset = begin.get(key, 0) if same_topic else 0
        if start_offset != end_offset:
            ranges.append(OffsetRange(key, topic_id, start_offset, end_offset))
    return ranges


def _nested(offsets: Mapping[PartitionKey, int]) -> dict[str, Any]:
    value: dict[str, Any] = {}
    for key in sorted(offsets):
        value.setdefault(key.topic, {})[str(key.partition)] = offsets[key]
    return value


def _flat(value: Mapping[str, Mapping[str, int]]) -> dict[PartitionKey, int]:
    return {
        PartitionKey(topic, int(partition)): int(offset)
        for topic, by_partition in value.items()
        for partition, offset in by_partition.items()
    }
