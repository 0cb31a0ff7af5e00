"""What calls about ranges of offsets share: finding the partition, checking the range, what was aborted in it."""

from __future__ import annotations

from millrace.errors import InvalidRequestError, OffsetOutOfRangeError
from millrace.protocol import millrace_pb2 as pb
from millrace.records import scan_headers
from millrace_broker.broker import Broker
from millrace_broker.log import PartitionLog
from millrace_broker.replication.runtime import ServedPartition


def end_of(log: PartitionLog, isolation_level: pb.IsolationLevel.ValueType) -> int:
    """The offset up to which a caller of this isolation may read."""
    return log.last_stable_offset if isolation_level == pb.READ_COMMITTED else log.high_watermark


def check_range(partition: ServedPartition, start_offset: int, end_offset: int, readable_end: int) -> None:
    """Raise unless the range is in order and wholly readable.

    Raises ``InvalidRequestError`` when it ends before it starts, ``OffsetOutOfRangeError`` naming what is there.
    """
    name = f"{partition.topic.name}-{partition.info.partition}"
    first = partition.log.log_start_offset
    if start_offset < first:
        raise OffsetOutOfRangeError(
            f"offsets {start_offset}..{first - 1} of {name} are gone (retention): start at {first} or later"
        )
    if end_offset < start_offset:
        raise InvalidRequestError(f"a range of {name} that ends at {end_offset}, before its start {start_offset}")
    if end_offset > readable_end:
        raise OffsetOutOfRangeError(f"{name} can be read up to offset {readable_end}, not to {end_offset}")


def aborted_transactions(log: PartitionLog, start_offset: int, end_offset: int) -> list[pb.AbortedTransaction]:
    """The aborted transactions that reach into a range. Raises what the log raises; waits for the disk."""
    return [
        pb.AbortedTransaction(
            producer_id=each.producer_id, first_offset=each.first_offset, last_offset=each.last_offset
        )
        for each in log.aborted_transactions(start_offset, end_offset)
    ]


def aborted_within(log: PartitionLog, start_offset: int, records: bytes) -> list[pb.AbortedTransaction]:
    """Those that reach into batches which were read from an offset on."""
    next_offset = max((header.next_offset for _, header in scan_headers(records)), default=start_offset)
    return aborted_transactions(log, start_offset, next_offset) if next_offset > start_offset else []


def find_partition(broker: Broker, request: pb.LocateRangeRequest | pb.ReadRangeRequest) -> ServedPartition:
    """The partition that a request names. Raises what ``Broker.topic`` and ``Broker.partition`` raise."""
    return broker.partitions.led(broker.partitions.topic(request.topic, request.topic_id), request.partition)
