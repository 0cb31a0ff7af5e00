"""A stream's offsets in Spark's checkpoint, and detection of lost records.

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

import logging
import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final

from millrace.errors import OffsetsLostError, UsageError
from millrace.ids import id_text, parse_id
from pyspark_millrace.partition_key import PartitionKey

if TYPE_CHECKING:
    from pyspark_millrace.options.source import Subscription

_TOPIC_IDS: Final = "@topic-ids"
_CLUSTER: Final = "@cluster"
_INITIAL: Final = "@initial"
_FROM: Final = "@from"
_LEADER_EPOCHS: Final = "@leader-epochs"
_PARTED: Final = "@parted"
_RESET: Final = "@reset"
_LISTED_MAX: Final = 10


@dataclass(frozen=True, slots=True)
class StreamOffsets:
    """One point of a stream: the next offset of each partition, and the ids of the topics."""

    next_offsets: Mapping[PartitionKey, int]
    topic_ids: Mapping[str, uuid.UUID]
    is_initial: bool = False
    started_from: Mapping[PartitionKey, int] | None = None
    is_reset: bool = False
    cluster_id: str | None = None
    leader_epochs: Mapping[PartitionKey, int] = field(default_factory=dict)
    parted: Mapping[PartitionKey, int] = field(default_factory=dict)

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
        if self.parted:
            value[_PARTED] = _nested(self.parted)
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
                parted=_flat(value.get(_PARTED, {})),
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
        parted: Mapping[PartitionKey, int] | None = None,
    ) -> StreamOffsets:
        """Return the end of a batch that starts here, or at ``parted``; returns self if there is nothing to read."""
        is_here = dict(next_offsets) == dict(self.next_offsets) and dict(topic_ids) == dict(self.topic_ids)
        if is_here and not parted:
            return self
        return StreamOffsets(
            next_offsets,
            topic_ids,
            started_from=self.next_offsets if self.is_initial else None,
            cluster_id=cluster_id or self.cluster_id,
            leader_epochs={key: epoch for key, epoch in (leader_epochs or {}).items() if key in next_offsets},
            parted=parted or {},
        )


@dataclass(frozen=True, slots=True)
class OffsetRange:
    """Offsets ``start`` to ``end`` (exclusive) of one partition of the topic with that id."""

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
    whose log lost records already read begins at its offset in ``end.parted``.

    A batch that ends at initial offsets has no ranges: when Spark repeats it, "latest" may have moved beyond them. A
    batch that ends at reset offsets has none either. Offsets that the reset skips are not read; offsets that it goes
    back to are read by the next batch.
    """
    if end.is_initial or end.is_reset or end == start:
        return []
    begin = {**start.next_offsets, **end.parted}
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


@dataclass(frozen=True, slots=True)
class Loss:
    """Records that a query should read but cannot: a sentence that names them, and the remedy."""

    what: str
    remedy: str

    def __str__(self) -> str:
        """Return the whole message."""
        return f"{self.what}: {self.remedy}, or set failOnDataLoss=false to continue without them"


@dataclass(slots=True)
class LossReport:
    """Collector of losses. With ``fail`` the first loss fails the query; otherwise the caller logs them."""

    fail: bool
    losses: list[Loss] = field(default_factory=list)

    def add(self, loss: Loss) -> None:
        """Raise ``OffsetsLostError``, or record the loss."""
        if self.fail:
            raise OffsetsLostError(str(loss))
        self.losses.append(loss)

    def warn(self, logger: logging.Logger) -> None:
        """Log the accepted losses."""
        for loss in self.losses:
            logger.warning("%s; the query continues without them, because failOnDataLoss is false", loss.what)


def clip_to_log(
    wanted: OffsetRange, log_start: int, log_end: int, report: LossReport, *, why: str = "by retention or deletion"
) -> OffsetRange:
    """Clip a range to the log, which holds ``log_start`` to ``log_end`` (the high watermark, exclusive).

    Offsets below the log start (removed as ``why`` says) and beyond the log end are reported. Gaps inside the log come
    from compaction and are no loss.
    """
    if wanted.start > wanted.end:
        report.add(truncated(wanted.key, wanted.start, wanted.end))
        return replace(wanted, start=wanted.end)
    start, end = (min(max(offset, log_start), log_end) for offset in (wanted.start, wanted.end))
    if start == end:
        # Nothing remains: keep the position inside the requested range.
        start = end = min(max(log_start, wanted.start), wanted.end)
    if wanted.start < start:
        report.add(
            Loss(
                f"offsets {wanted.start}..{start - 1} of {wanted.key} were deleted ({why}; the log now starts at "
                f"{log_start})",
                f"start at {log_start}",
            )
        )
    if end < wanted.end:
        report.add(
            Loss(
                f"offsets {end}..{wanted.end - 1} of {wanted.key} are not in the log, which ends at {log_end}",
                f"end at {log_end}",
            )
        )
    return replace(wanted, start=start, end=end)


def why_removed(configs: Mapping[str, str]) -> str:
    """Return the reason why the oldest records of a topic are removed with these settings, for a loss message."""
    kept = {name: configs.get(name, "-1") for name in ("retention.ms", "retention.bytes")}
    if "delete" in configs.get("cleanup.policy", "delete") and any(value != "-1" for value in kept.values()):
        return f"by retention, {', '.join(f'{name}={value}' for name, value in kept.items())}, or DeleteRecords"
    return "by DeleteRecords, because the topic has no retention"


def losses_between(since: StreamOffsets, newest: StreamOffsets, subscription: Subscription) -> list[Loss]:
    """Return the losses of a query that resumes at ``since`` while its topics are as in ``newest``."""
    if since.cluster_id and newest.cluster_id and since.cluster_id != newest.cluster_id:
        return [
            Loss(
                f"the checkpoint is of cluster {since.cluster_id}, but these brokers are cluster {newest.cluster_id}: "
                "the offsets are not valid there",
                "correct kafka.bootstrap.servers, or start with a new checkpoint",
            )
        ]
    anew = {
        topic: was
        for topic, topic_id in newest.topic_ids.items()
        if (was := since.topic_ids.get(topic, topic_id)) != topic_id
    }
    losses = [recreated(topic, was, newest.topic_ids[topic], _unread(since, topic)) for topic, was in anew.items()]
    absent = sorted(key for key in since.next_offsets.keys() - newest.next_offsets.keys() if key.topic not in anew)
    if other := [key for key in absent if not subscription.covers(key)]:
        losses.append(
            Loss(
                f"the checkpoint has offsets of {_listed(other)}, which this query does not read: {subscription}",
                "give each query a checkpoint of its own",
            )
        )
    if deleted := [key for key in absent if subscription.covers(key)]:
        what = ", ".join(f"{key} from offset {since.next_offsets[key]}" for key in deleted)
        losses.append(gone(map(str, deleted), f"records of {what} on are lost"))
    return losses


def truncated(key: PartitionKey, read_up_to: int, log_end: int) -> Loss:
    """Return the loss for a log that ends before offsets already read."""
    return Loss(
        f"the log of {key} was truncated: offsets up to {read_up_to - 1} have been read, but it now ends at {log_end}",
        "start with a new checkpoint",
    )


def recreated(topic: str, was: uuid.UUID, now: uuid.UUID, lost: str) -> Loss:
    """Return the loss for a topic with a changed id; ``lost`` names its unread offsets."""
    return Loss(
        f"topic {topic} is not the topic that was read: its id is {id_text(now)} and was {id_text(was)} (deleted and "
        f"created again); {lost} of the old topic are lost",
        "start with a new checkpoint",
    )


def gone(what: Iterable[str], lost: str = "its remaining records are lost") -> Loss:
    """Return the loss for topics or partitions that were deleted while a query read them."""
    return Loss(f"{', '.join(what)} no longer exists: {lost}", "stop reading it")


def _unread(since: StreamOffsets, topic: str) -> str:
    left = [f"{key} from {offset} on" for key, offset in sorted(since.next_offsets.items()) if key.topic == topic]
    return "offsets of " + ", ".join(left)


def _listed(keys: Sequence[PartitionKey]) -> str:
    shown = ", ".join(map(str, keys[:_LISTED_MAX]))
    return shown if len(keys) <= _LISTED_MAX else f"{shown} and {len(keys) - _LISTED_MAX} more"


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
