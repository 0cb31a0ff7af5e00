"""Offset ranges: partition look-up, range checks, aborted transactions."""

from __future__ import annotations

from millrace.errors import InvalidRequestError, OffsetOutOfRangeError
from millrace.protocol import millrace_pb2 as pb
from millrace.segments.transaction_index import AbortedTransaction
from millrace_broker.log import PartitionLog
from millrace_broker.replication.runtime import PartitionDirectory, ServedPartition


def end_of(log: PartitionLog, isolation_level: pb.IsolationLevel.ValueType) -> int:
    """Return the end offset that the isolation level may read up to."""
    return log.last_stable_offset if isolation_level == pb.READ_COMMITTED else log.high_watermark


def check_range(partition: ServedPartition, start_offset: int, end_offset: int, readable_end: int) -> None:
    """Raise unless the range is valid and wholly readable.

    Raises ``InvalidRequestError`` if the range ends before it starts. Raises ``OffsetOutOfRangeError``, which names the
    readable offsets.
    """
    name = f"{partition.topic.name}-{partition.info.partition}"
    first = partition.log.log_start_offset
    if start_offset < first:
        raise OffsetOutOfRangeError(
            f"offsets {start_offset}..{first - 1} of {name} were deleted (retention): start at {first} or later"
        )
    if end_offset < start_offset:
        raise InvalidRequestError(f"the range of {name} ends at {end_offset}, before its start {start_offset}")
    if end_offset > readable_end:
        raise OffsetOutOfRangeError(f"{name} can be read up to offset {readable_end}, not to {end_offset}")


def aborted_transactions(log: PartitionLog, start_offset: int, end_offset: int) -> list[pb.AbortedTransaction]:
    """Return the aborted transactions that overlap a range. Reads the disk, and raises the log's errors."""
    return [aborted_message(each) for each in log.aborted_transactions(start_offset, end_offset)]


def aborted_message(transaction: AbortedTransaction) -> pb.AbortedTransaction:
    """Return an aborted transaction for a response."""
    return pb.AbortedTransaction(
        producer_id=transaction.producer_id,
        first_offset=transaction.first_offset,
        last_offset=transaction.last_offset,
    )


def find_partition(
    partitions: PartitionDirectory, request: pb.LocateRangeRequest | pb.ReadRangeRequest
) -> ServedPartition:
    """Return the partition that a request names. Raises the errors of ``PartitionDirectory.topic`` and ``.led``."""
    return partitions.led(partitions.topic(request.topic, request.topic_id), request.partition)
