"""Where a follower's log and its leader's part, by leader epochs. Pure.

Going back to the high watermark instead loses records, and leaves different ones under the same offset, as KIP-101
describes: the watermark that a follower knows is older than what has been acknowledged.

Source: KIP-101, KIP-279 (the epoch that both know), KIP-595 (found by the leader at a fetch).
"""

from __future__ import annotations

from dataclasses import dataclass

from millrace.errors import FencedLeaderEpochError, OffsetOutOfRangeError, UnknownLeaderEpochError
from millrace_broker.replication.core.model import EpochEnd, LogView


def check_leader_epoch(partition: str, current: int, requested: int | None) -> None:
    """Raise unless a request of leader epoch ``requested`` fits a replica at ``current``; None always fits.

    ``FencedLeaderEpochError``: the asker is behind. ``UnknownLeaderEpochError``: this replica is.
    """
    if requested is None or requested == current:
        return
    if requested < current:
        raise FencedLeaderEpochError(f"{partition}: leader epoch {requested} is over, it is {current}: fetch metadata")
    raise UnknownLeaderEpochError(f"{partition}: leader epoch {requested} is not known here yet, only {current}: retry")


def epoch_end(log: LogView, epoch: int) -> EpochEnd | None:
    """The answer to OffsetsForLeaderEpoch; None when the epoch is newer than all in the log, or none are known."""
    found = log.epochs.end_offset_of(epoch, log.log_end_offset)
    return None if found is None else EpochEnd(epoch=found[0], end_offset=found[1])


def find_divergence(partition: str, log: LogView, fetch_offset: int, last_fetched_epoch: int) -> EpochEnd | None:
    """What a leader tells a follower whose log it does not agree with; None when the follower may fetch on.

    Raises ``OffsetOutOfRangeError`` where it cannot tell: the epoch is not in its log, or the offset before its start.
    """
    end = epoch_end(log, last_fetched_epoch)
    if end is None:
        raise OffsetOutOfRangeError(
            f"{partition}: epoch {last_fetched_epoch} of the record before offset {fetch_offset} is not in this log, "
            f"which has {log.log_start_offset}..{log.log_end_offset}"
        )
    if fetch_offset < log.log_start_offset:
        raise OffsetOutOfRangeError(f"{partition}: offset {fetch_offset}, the log starts at {log.log_start_offset}")
    if end.epoch < last_fetched_epoch or end.end_offset < fetch_offset:
        return end
    return None


@dataclass(frozen=True, slots=True)
class TruncationPoint:
    """The offset at which a follower's log is to end; not final when an earlier epoch has to be compared after it."""

    offset: int
    is_final: bool


def truncation_point(log: LogView, high_watermark: int, leaders: EpochEnd | None) -> TruncationPoint:
    """Where a follower truncates to when its leader has answered with the end of an epoch; None: it knows no such one.

    Where the follower does not know the leader's epoch either, it goes back to the end of the last epoch before it,
    and compares again.
    """
    if leaders is None:
        return TruncationPoint(min(high_watermark, log.log_end_offset), is_final=True)
    own = log.epochs.end_offset_of(leaders.epoch, log.log_end_offset)
    if own is None:  # older than what epochs are kept of: the leader's word is all there is
        return TruncationPoint(min(leaders.end_offset, log.log_end_offset), is_final=True)
    own_epoch, own_end = own
    if own_epoch != leaders.epoch:
        return TruncationPoint(min(own_end, log.log_end_offset), is_final=False)
    return TruncationPoint(min(own_end, leaders.end_offset, log.log_end_offset), is_final=True)
