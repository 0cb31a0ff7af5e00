"""Handler of ListOffsets, which finds offsets by timestamp, each partition separately."""

from __future__ import annotations

from collections import Counter
from typing import Final

from millrace.errors import InvalidRequestError, OffsetNotAvailableError
from millrace.protocol import millrace_pb2 as pb
from millrace_broker.api.common.access_rules import authorized
from millrace_broker.api.common.broker_calls import check_is_broker
from millrace_broker.api.common.errors import error_message
from millrace_broker.api.common.leader_epochs import check_epoch
from millrace_broker.api.common.ranges import end_of
from millrace_broker.api.common.request_context import RequestContext
from millrace_broker.broker import Broker
from millrace_broker.replication.runtime import ServedPartition
from millrace_broker.runtime.turns import Turns

LATEST: Final = -1
EARLIEST: Final = -2
MAX_TIMESTAMP: Final = -3
EARLIEST_LOCAL: Final = -4
"""First offset on the broker's own disk (KIP-405)."""
LATEST_TIERED: Final = -5
"""Last offset in the remote store (KIP-1005)."""
EARLIEST_PENDING_UPLOAD: Final = -6
"""First offset that is not in the remote store yet (KIP-1023)."""
_ENDS: Final = (LATEST, EARLIEST, EARLIEST_LOCAL, LATEST_TIERED, EARLIEST_PENDING_UPLOAD)
_NONE: Final = (-1, -1)


@authorized("ListOffsets")
async def handle(broker: Broker, request: pb.ListOffsetsRequest, context: RequestContext) -> pb.ListOffsetsResponse:
    """Answer with the offset for each partition's timestamp; -1 if no record has that timestamp or a later one."""
    if request.HasField("replica_id"):
        check_is_broker(broker, context)
    response, turns = pb.ListOffsetsResponse(), Turns()
    times_wanted: Counter[tuple[str, int]] = Counter()
    if not request.HasField("replica_id"):  # a follower asks for both ends of a log
        times_wanted.update((topic.name, each.partition) for topic in request.topics for each in topic.partitions)
    for topic_times in request.topics:
        topic_offsets = response.topics.add(name=topic_times.name)
        for wanted in topic_times.partitions:
            await turns.next()
            result = topic_offsets.partitions.add(partition=wanted.partition)
            try:
                if times_wanted[topic_times.name, wanted.partition] > 1:
                    raise InvalidRequestError(
                        f"partition {wanted.partition} of {topic_times.name} is in the request twice: send one of them"
                    )
                topic = await broker.partitions.find_topic(topic_times.name)
                topic_offsets.topic_id = topic.topic_id.bytes
                partition = broker.partitions.led(topic, wanted.partition)
                log = partition.log
                if wanted.HasField("current_leader_epoch"):
                    check_epoch(partition, wanted.current_leader_epoch)
                if request.HasField("replica_id") and wanted.timestamp == LATEST:
                    result.offset, result.timestamp = log.log_end_offset, -1
                    continue
                # A search by timestamp begins at the log's start. The ends of a log are known without reading.
                looks_from = log.log_end_offset if wanted.timestamp in _ENDS else log.log_start_offset
                result.offset, result.timestamp = await broker.reads.run_read(
                    log, looks_from, _find, partition, wanted.timestamp, request.isolation_level
                )
                result.leader_epoch = log.epoch_of(result.offset)
            except Exception as error:  # noqa: BLE001 - the partition's error; unexpected errors are logged
                result.offset, result.timestamp = _NONE
                result.leader_epoch = -1
                result.error.CopyFrom(error_message(error))
    return response


def _check_known(partition: ServedPartition) -> None:
    """Raise while a new leader's high watermark may be below the previous leader's, which consumers have seen."""
    replica = partition.replica
    if replica.log.high_watermark < replica.leader.epoch_start:
        raise OffsetNotAvailableError(
            f"{replica.name}: the new leader does not know the log ends of all in-sync replicas yet: try again"
        )


def _find(
    partition: ServedPartition, timestamp_ms: int, isolation_level: pb.IsolationLevel.ValueType
) -> tuple[int, int]:
    log = partition.log
    end_offset = end_of(log, isolation_level)
    if timestamp_ms == LATEST:
        _check_known(partition)
        return end_offset, -1
    if timestamp_ms == EARLIEST:
        return log.log_start_offset, -1
    if timestamp_ms == EARLIEST_LOCAL:
        return max(log.first_base_offset, log.log_start_offset), -1
    if timestamp_ms == LATEST_TIERED:
        return (log.remote.end_offset if log.remote is not None else 0) - 1, -1
    if timestamp_ms == EARLIEST_PENDING_UPLOAD:
        return _NONE if log.remote is None else (max(log.remote.end_offset, log.log_start_offset), -1)
    if timestamp_ms < 0 and timestamp_ms != MAX_TIMESTAMP:
        raise InvalidRequestError(
            f"timestamp {timestamp_ms}: expected ms, or -1 latest, -2 earliest, -3 largest, -4 earliest on the disk, "
            "-5 latest in the remote store, -6 first that is not in the remote store"
        )
    found = log.max_timestamp_offset() if timestamp_ms == MAX_TIMESTAMP else log.offset_for_time(timestamp_ms)
    if found is not None and found[0] < end_offset:
        return found
    _check_known(partition)
    return _NONE
