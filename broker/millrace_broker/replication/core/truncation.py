"""The offset where a follower's and its leader's log diverge. Pure.

Truncation to the high watermark would lose records, and leave different records under the same offset (KIP-101). The
reason is that a follower's high watermark lags behind the acknowledged records.

Source: KIP-101, KIP-279 (the epoch that both logs have), KIP-595 (the leader finds the divergence in a fetch).
"""

from __future__ import annotations

from dataclasses import dataclass

from millrace.errors import FencedLeaderEpochError, OffsetOutOfRangeError, UnknownLeaderEpochError
from millrace_broker.replication.core.model import EpochEnd, LogView


def check_leader_epoch(partition: str, current: int, requested: int | None) -> None:
    """Raise unless a request of leader epoch ``requested`` fits a replica at ``current``; None always fits.

    Raises ``FencedLeaderEpochError`` if the client is behind, ``UnknownLeaderEpochError`` if this replica is behind.
    """
    if requested is None or requested == current:
        return
    if requested < current:
        raise FencedLeaderEpochError(
            f"{partition}: leader epoch {requested} is fenced, because the current leader epoch is {current}: fetch "
            "the metadata again"
        )
    raise UnknownLeaderEpochError(
        f"{partition}: leader epoch {requested} is newer than {current}, the newest that this broker knows: retry"
    )


def epoch_end(log: LogView, epoch: int) -> EpochEnd | None:
    """Return the answer to OffsetsForLeaderEpoch.

    Returns None if the epoch is newer than all epochs in the log, or if the log has no epochs.
    """
    found = log.epochs.end_offset_of(epoch, log.log_end_offset)
    return None if found is None else EpochEnd(epoch=found[0], end_offset=found[1])


def find_divergence(partition: str, log: LogView, fetch_offset: int, last_fetched_epoch: int) -> EpochEnd | None:
    """Return where the leader's log and a follower's log diverge; None if the follower may continue to fetch.

    Raises ``OffsetOutOfRangeError`` if that is unknown, because the epoch is not in its log or the offset is before the
    log start.
    """
    end = epoch_end(log, last_fetched_epoch)
    if end is None:
        raise OffsetOutOfRangeError(
            f"{partition}: epoch {last_fetched_epoch} of the record before offset {fetch_offset} is not in this log, "
            f"which has {log.log_start_offset}..{log.log_end_offset}"
        )
    if fetch_offset < log.log_start_offset:
        raise OffsetOutOfRangeError(
            f"{partition}: offset {fetch_offset} is below the log start offset, {log.log_start_offset}"
        )
    if end.epoch < last_fetched_epoch or end.end_offset < fetch_offset:
        return end
    return None


@dataclass(frozen=True, slots=True)
class TruncationPoint:
    """The offset to truncate a follower's log to.

    It is not final if the follower has to compare an earlier epoch afterwards.
    """

    offset: int
    is_final: bool


def truncation_point(log: LogView, high_watermark: int, leaders: EpochEnd | None) -> TruncationPoint:
    """Return where a follower truncates after the leader's answer with the end of an epoch.

    ``leaders`` is None if the leader knows no such epoch. If the follower does not know the leader's epoch either, it
    truncates to the end of the last epoch before that one, and compares again.
    """
    if leaders is None:
        return TruncationPoint(min(high_watermark, log.log_end_offset), is_final=True)
    own = log.epochs.end_offset_of(leaders.epoch, log.log_end_offset)
    if own is None:  # the epoch is older than the epochs in this log; only the leader knows its end
        return TruncationPoint(min(leaders.end_offset, log.log_end_offset), is_final=True)
    own_epoch, own_end = own
    if own_epoch != leaders.epoch:
        return TruncationPoint(min(own_end, log.log_end_offset), is_final=False)
    return TruncationPoint(min(own_end, leaders.end_offset, log.log_end_offset), is_final=True)
