"""Lag of a group in records, bytes and seconds.

It needs only committed offsets. So it works for consumers, for programs that only commit, and for Spark queries that
commit their progress (``group.id``).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

import pyarrow as pa

from millrace.clients.groups.model import GroupDescription, GroupMemberDescription, PartitionLag
from millrace.clients.log_operations import LogOperations
from millrace.clients.model import OffsetAndTimestamp, TopicPartition
from millrace.errors import MillraceError, OffsetOutOfRangeError, UnknownTopicOrPartitionError
from millrace.records import decode_range


class Committed(NamedTuple):
    """Committed offset of a partition.

    ``at_ms`` is its commit time. ``complete_count`` is the number of completed offsets after it, in a share group.
    """

    offset: int
    at_ms: int | None
    complete_count: int = 0


def group_lag(
    logs: LogOperations,
    group: GroupDescription,
    committed: Mapping[TopicPartition, Committed],
    schema_of: Callable[[int], pa.Schema],
    *,
    measure: bool = True,
) -> list[PartitionLag]:
    """Return the lag of every partition that a group has committed or reads now, by topic and partition.

    Without ``measure`` only records are counted. Bytes and seconds cost two calls for each partition with a lag.
    """
    readers = {partition: member for member in group.members for partition in member.partitions}
    partitions = sorted(committed.keys() | readers.keys())
    starts, ends = _edges(logs, partitions, "earliest"), _edges(logs, partitions, "latest")
    return [
        _partition_lag(
            logs,
            group.group_id,
            partition,
            committed.get(partition),
            (starts.get(partition), ends.get(partition)),
            None if group.is_shared else readers.get(partition),
            schema_of if measure else None,
        )
        for partition in partitions
    ]


def _edges(logs: LogOperations, partitions: Iterable[TopicPartition], where: str) -> dict[TopicPartition, int]:
    """Return the offsets at one end; deleted partitions are omitted."""
    wanted = dict.fromkeys(partitions, where)
    try:
        found: Mapping[TopicPartition, OffsetAndTimestamp] = logs.list_offsets(wanted)
    except UnknownTopicOrPartitionError:
        if len(wanted) == 1:
            return {}
        edges: dict[TopicPartition, int] = {}
        for partition in wanted:
            edges |= _edges(logs, [partition], where)
        return edges
    return {partition: place.offset for partition, place in found.items()}


def _partition_lag(
    logs: LogOperations,
    group_id: str,
    partition: TopicPartition,
    committed: Committed | None,
    edges: tuple[int | None, int | None],
    member: GroupMemberDescription | None,
    schema_of: Callable[[int], pa.Schema] | None,
) -> PartitionLag:
    start, end = edges
    lag = None if committed is None or end is None else max(end - committed.offset - committed.complete_count, 0)
    size_bytes: int | None = None
    seconds: float | None = None
    if lag == 0:
        size_bytes, seconds = 0, 0.0
    elif lag and committed is not None and start is not None and end is not None and schema_of is not None:
        first = max(committed.offset, start)
        size_bytes, seconds = _bytes(logs, partition, first, end), _seconds(logs, partition, first, end, schema_of)
    return PartitionLag(
        group_id=group_id,
        topic=partition.topic,
        partition=partition.partition,
        committed=None if committed is None else committed.offset,
        log_start=start,
        log_end=end,
        lag=lag,
        lag_bytes=size_bytes,
        lag_seconds=seconds,
        committed_at_ms=None if committed is None else committed.at_ms,
        member=member,
    )


def _bytes(logs: LogOperations, partition: TopicPartition, first: int, end: int) -> int | None:
    """Return the size of the batches that hold a range; ``None`` if retention removed them meanwhile."""
    if first >= end:
        return 0
    try:
        located = logs.locate_range(partition.topic, partition.partition, first, end)
    except OffsetOutOfRangeError:
        return None
    return sum(extent.size_bytes for extent in located.extents)


def _seconds(
    logs: LogOperations, partition: TopicPartition, first: int, end: int, schema_of: Callable[[int], pa.Schema]
) -> float | None:
    """Return the age of the first record of a range; ``None`` without a record or timestamp."""
    try:
        for chunk in logs.read_range(partition.topic, partition.partition, first, end):
            for batch in decode_range(pa.py_buffer(chunk), first, end, schema_of, ()):
                timestamp_ms = batch.timestamps_ms()[0].as_py()
                return None if timestamp_ms < 0 else max(time.time() - timestamp_ms / 1000, 0.0)
    except MillraceError:
        return None
    return None
