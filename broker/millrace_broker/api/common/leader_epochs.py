"""Leader epochs in requests: fencing who has old metadata, and finding where logs part (KIP-101, KIP-279, KIP-320)."""

from __future__ import annotations

from typing import Final

from millrace.errors import FencedLeaderEpochError, OffsetOutOfRangeError, UnknownLeaderEpochError
from millrace.protocol import millrace_pb2 as pb
from millrace_broker.log import PartitionLog
from millrace_broker.replication.runtime import ServedPartition

_NOT_KNOWN: Final = (-1, -1)


def check_epoch(partition: ServedPartition, epoch: int) -> None:
    """Raise unless a request comes in the partition's present leader epoch; -1 is not checked.

    Raises ``FencedLeaderEpochError``, ``UnknownLeaderEpochError``.
    """
    present = partition.known_epoch
    name = f"{partition.topic.name}-{partition.info.partition}"
    if 0 <= epoch < present:
        raise FencedLeaderEpochError(f"{name} is in leader epoch {present}, the request in {epoch}: fetch the metadata")
    if epoch > present:
        raise UnknownLeaderEpochError(f"{name} is in leader epoch {present}, the request already in {epoch}: try again")


def end_of_epoch(log: PartitionLog, epoch: int) -> pb.EpochEndOffset:
    """Where an epoch ends in a log; -1 where that is not known."""
    found, end_offset = log.end_of_epoch(epoch) or _NOT_KNOWN
    return pb.EpochEndOffset(leader_epoch=found, end_offset=end_offset)


def divergence(log: PartitionLog, last_epoch: int, offset: int) -> pb.EpochEndOffset | None:
    """Where the log of somebody whose last record before ``offset`` is of ``last_epoch`` parts from this one.

    None: it does not, or the epoch is -1, not known. Raises ``OffsetOutOfRangeError`` when it is not known here.
    """
    if last_epoch < 0:
        return None
    found = log.end_of_epoch(last_epoch)
    if found is None:
        raise OffsetOutOfRangeError(
            f"{log.name} knows nothing of leader epoch {last_epoch}, in which offset {offset - 1} is said to be"
        )
    epoch, end_offset = found
    if epoch == last_epoch and end_offset >= offset:
        return None
    return pb.EpochEndOffset(leader_epoch=epoch, end_offset=end_offset)
