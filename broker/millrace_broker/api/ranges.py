"""What the two calls about ranges of offsets share: finding the partition and checking the range."""

from __future__ import annotations

from millrace.errors import InvalidRequestError, OffsetOutOfRangeError
from millrace.protocol import millrace_pb2 as pb
from millrace_broker.broker import Broker, ServedPartition


def end_of(partition: ServedPartition, isolation_level: pb.IsolationLevel.ValueType) -> int:
    """The offset up to which a caller of this isolation may read."""
    log = partition.log
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


def find_partition(broker: Broker, request: pb.LocateRangeRequest | pb.ReadRangeRequest) -> ServedPartition:
    """The partition that a request names. Raises what ``Broker.topic`` and ``Broker.partition`` raise."""
    return broker.partition(broker.topic(request.topic, request.topic_id), request.partition)
