"""Leader epochs in requests: fencing and log divergence (KIP-101, KIP-279, KIP-320)."""

from __future__ import annotations

from typing import Final

from millrace.errors import FencedLeaderEpochError, OffsetOutOfRangeError, UnknownLeaderEpochError
from millrace.protocol import millrace_pb2 as pb
from millrace_broker.log import PartitionLog
from millrace_broker.replication.runtime import ServedPartition

_NOT_KNOWN: Final = (-1, -1)


def check_epoch(partition: ServedPartition, epoch: int) -> None:
    """Raise unless the request's epoch is the partition's current leader epoch. An epoch of -1 is not checked.

    Raises ``FencedLeaderEpochError``, ``UnknownLeaderEpochError``.
    """
    present = partition.known_epoch
    name = f"{partition.topic.name}-{partition.info.partition}"
    if 0 <= epoch < present:
        raise FencedLeaderEpochError(
            f"{name} is in leader epoch {present}, but the request is in {epoch}: refresh the metadata"
        )
    if epoch > present:
        raise UnknownLeaderEpochError(
            f"{name} is in leader epoch {present}, but the request is in the later {epoch}: try again"
        )


def end_of_epoch(log: PartitionLog, epoch: int) -> pb.EpochEndOffset:
    """Return the end offset of an epoch in a log; -1 if it is unknown."""
    found, end_offset = log.end_of_epoch(epoch) or _NOT_KNOWN
    return pb.EpochEndOffset(leader_epoch=found, end_offset=end_offset)


def divergence(log: PartitionLog, last_epoch: int, offset: int) -> pb.EpochEndOffset | None:
    """Return the point where the caller's log diverges from this log, or None.

    ``last_epoch`` is the leader epoch of the caller's last record before ``offset``. The result is None if the logs
    agree, or if ``last_epoch`` is -1 (unknown). Raises ``OffsetOutOfRangeError`` if this log does not know the epoch.
    """
    if last_epoch < 0:
        return None
    found = log.end_of_epoch(last_epoch)
    if found is None:
        raise OffsetOutOfRangeError(
            f"{log.name} does not know leader epoch {last_epoch}, the request's epoch of offset {offset - 1}: "
            "reset the offset"
        )
    epoch, end_offset = found
    if epoch == last_epoch and end_offset >= offset:
        return None
    return pb.EpochEndOffset(leader_epoch=epoch, end_offset=end_offset)
