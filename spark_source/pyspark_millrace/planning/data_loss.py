"""Detection of lost records, and the option ``failOnDataLoss`` of Spark's Kafka source.

A query loses records that retention or DeleteRecords removed before it read them, or whose topic was deleted. Logs that
lost records already read are found by ``log_divergence``.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

from millrace.errors import OffsetsLostError
from millrace.ids import id_text
from pyspark_millrace.partition_key import PartitionKey
from pyspark_millrace.planning.offsets import OffsetRange, StreamOffsets

if TYPE_CHECKING:
    from pyspark_millrace.options.source import Subscription

_LISTED_MAX: Final = 10


@dataclass(frozen=True, slots=True)
class Loss:
    """Records that a query should read but cannot.

    ``what`` is a sentence that names the records, and ``remedy`` tells what to do.
    """

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
