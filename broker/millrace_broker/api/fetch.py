"""Handler of Fetch, which reads batches of several partitions from given offsets.

The limits are Kafka's (KIP-74). Partitions are read in the order of the request until ``max_bytes`` is used up, each up
to its ``partition_max_bytes``. The first batch of the first non-empty partition is returned whole, whatever its size,
so that a reader always makes progress.

A call with fewer than ``min_bytes`` waits for new records only. If a segment or a limit ended a read before the last
record, the call is answered at once, as by Kafka's ``DelayedFetch``.

A ``READ_COMMITTED`` fetch reads up to the last stable offset, and waits for that offset to advance. The response lists
the aborted transactions among the returned batches.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import Final, NamedTuple

from millrace.errors import MillraceError, StorageError
from millrace.protocol import millrace_pb2 as pb
from millrace.protocol.fetch_response import FetchAnswer, PartitionAnswer
from millrace.records import end_of_batches
from millrace_broker.api.common.access_rules import authorized
from millrace_broker.api.common.broker_calls import check_is_broker
from millrace_broker.api.common.errors import error_message
from millrace_broker.api.common.leader_epochs import check_epoch, divergence
from millrace_broker.api.common.ranges import aborted_message, end_of
from millrace_broker.api.common.request_context import RequestContext
from millrace_broker.broker import Broker
from millrace_broker.log import PartitionLog
from millrace_broker.log.read_threads import ReadPlace
from millrace_broker.quotas import Lease
from millrace_broker.replication.runtime import ServedPartition
from millrace_broker.runtime.turns import Turns

_CACHED_BYTES_MAX: Final = 4 * 1024 * 1024
"""Bytes of a fetch that the event loop reads from the page cache: 0.3 ms for 1 MiB. A thread takes 0.6 ms more."""


class _Reading(NamedTuple):
    """The response after a read of all partitions.

    ``has_error`` means that the response has an error or a redirection, which must be sent without waiting.
    """

    response: FetchAnswer
    size_bytes: int
    has_error: bool
    reads: Sequence[_LogRead]


class _LogRead(NamedTuple):
    """A read of one partition for its part of the response.

    The read returns records from ``offset`` to ``end_offset`` (exclusive), at most ``max_bytes`` of them.
    """

    answered: PartitionAnswer
    log: PartitionLog
    offset: int
    end_offset: int
    max_bytes: int


@authorized("Fetch")
async def handle(broker: Broker, request: pb.FetchRequest, context: RequestContext) -> FetchAnswer:
    """Read the available batches. With fewer than ``min_bytes``, wait up to ``max_wait_ms`` for more, and read again.

    When waiting calls must give way to others, the call is answered with what takes no further wait.

    A follower fetch (``replica_id`` of another broker) also reads records above the high watermark and reports the
    follower's log end offset.
    """
    if request.replica_id >= 0 and request.replica_id != broker.config.broker_id:
        check_is_broker(broker, context)
        return await broker.replicas.fetch(request, context.response_lease)
    max_bytes = response_bytes_max(broker, request.max_bytes, context)
    min_bytes = min(request.min_bytes, max_bytes)
    keys = [(topic.name, partition.partition) for topic in request.topics for partition in topic.partitions]
    arrivals = (
        broker.waiters.committed_fetches if request.isolation_level == pb.READ_COMMITTED else broker.waiters.fetches
    )
    watch = arrivals.watch(keys)
    if request.max_wait_ms > 0 and min_bytes > 0 and _is_at_end(broker, request):
        await watch.wait(wanted_bytes=min_bytes, timeout_s=request.max_wait_ms / 1000, is_poll=True)
        return (await _read_leased(broker, request, max_bytes, context.response_lease)).response
    reading = await _read_leased(broker, request, max_bytes, context.response_lease)
    if reading.size_bytes >= min_bytes or reading.has_error or request.max_wait_ms <= 0:
        return reading.response
    if _is_cut_short(reading.reads, min_bytes):
        return reading.response
    missing_bytes = min_bytes - reading.size_bytes
    del reading
    context.response_lease.release()
    await watch.wait(wanted_bytes=missing_bytes, timeout_s=request.max_wait_ms / 1000, is_poll=True)
    return (await _read_leased(broker, request, max_bytes, context.response_lease)).response


def response_bytes_max(broker: Broker, wanted_bytes: int, context: RequestContext) -> int:
    """Return the limit of a response: that of the request, of the broker, or of the client's quota."""
    max_bytes = min(wanted_bytes, broker.config.fetch_max_bytes)
    return max_bytes if context.usage is None else int(min(max_bytes, context.usage.fetch_bytes_max))


def _is_at_end(broker: Broker, request: pb.FetchRequest) -> bool:
    """Return whether no partition has records or an error to report, as in most polls of a consumer.

    Returns False for a consumer with a rack, because another replica may have to be reported.
    """
    if request.rack_id:
        return False
    try:
        for topic_fetch in request.topics:
            topic = broker.partitions.topic(topic_fetch.name, topic_fetch.topic_id)
            for wanted in topic_fetch.partitions:
                partition = broker.partitions.led(topic, wanted.partition, may_follow=request.may_follow)
                check_epoch(partition, wanted.current_leader_epoch)
                end_offset = end_of(partition.log, request.isolation_level)
                if wanted.fetch_offset != end_offset or wanted.HasField("last_fetched_epoch"):
                    return False
    except MillraceError:  # the read reports it, partition by partition
        return False
    return True


async def _read_leased(broker: Broker, request: pb.FetchRequest, max_bytes: int, lease: Lease) -> _Reading:
    """Read after the response's bytes are granted. Read no records if the call has to end before."""
    has_room = await lease.take(min(max_bytes, _readable_bytes_max(broker, request)), is_poll=True)
    reading = await _read(broker, request, max_bytes, has_room=has_room)
    lease.settle(reading.size_bytes)
    return reading


def _readable_bytes_max(broker: Broker, request: pb.FetchRequest) -> int:
    """Return the most bytes that the partitions with new records can give.

    A poll of an idle partition reserves nothing.
    """
    total = 0
    for topic in request.topics:
        for wanted in topic.partitions:
            try:
                log = broker.logs.get(topic.name, wanted.partition)
            except StorageError:  # offline; the read reports it
                continue
            if log is not None and wanted.fetch_offset < end_of(log, request.isolation_level):
                total += max(0, wanted.partition_max_bytes)
    return total


async def _read(broker: Broker, request: pb.FetchRequest, max_bytes: int, *, has_room: bool) -> _Reading:
    response = FetchAnswer()
    reads: list[_LogRead] = []
    has_error, turns = False, Turns()
    may_follow = request.may_follow or bool(request.rack_id)
    for topic_fetch in request.topics:
        topic_records = response.add_topic(topic_fetch.name, topic_fetch.topic_id)
        for wanted in topic_fetch.partitions:
            await turns.next()
            answered = topic_records.add_partition(wanted.partition)
            result = answered.result
            try:
                topic = broker.partitions.topic(topic_fetch.name, topic_fetch.topic_id)
                topic_records.topic_id = topic.topic_id.bytes
                partition = broker.partitions.led(topic, wanted.partition, may_follow=may_follow)
                check_epoch(partition, wanted.current_leader_epoch)
                if request.rack_id and _is_sent_elsewhere(broker, request, partition, wanted, result):
                    has_error = True
                    continue
                _describe(result, partition.log)
                if wanted.HasField("last_fetched_epoch") and _diverges(result, partition.log, wanted):
                    has_error = True
                    continue
                end_offset = end_of(partition.log, request.isolation_level)
                if has_room and wanted.fetch_offset != end_offset:
                    reads.append(
                        _LogRead(answered, partition.log, wanted.fetch_offset, end_offset, wanted.partition_max_bytes)
                    )
            except Exception as error:  # noqa: BLE001 - the partition's error; unexpected errors are logged
                has_error = True
                result.error.CopyFrom(error_message(error))
    is_committed = request.isolation_level == pb.READ_COMMITTED
    size_bytes = 0 if is_committed else _take_read_ahead(broker, reads, max_bytes)
    missing = [each for each in reads if not each.answered.records]
    size_bytes = await _read_logs(broker, missing, size_bytes, max_bytes, is_committed=is_committed)
    has_error = has_error or any(each.answered.result.HasField("error") for each in reads)
    return _Reading(response, size_bytes, has_error, reads)


def _is_cut_short(reads: Sequence[_LogRead], min_bytes: int) -> bool:
    """Return whether reads of fewer than ``min_bytes`` left records behind, so that waiting for new ones is wrong.

    A read ends with its segment. It returns whole batches, so it may be smaller than the limit that ended it. Such a
    read counts with its limit, because Kafka sends a part of the next batch.
    """
    size_bytes = 0
    for each in reads:
        records = each.answered.records
        if not records and not size_bytes:
            continue  # compaction left no records before the end
        if end_of_batches(records, each.offset) >= each.end_offset:
            size_bytes += len(records)
        elif any(each.offset < segment.base_offset < each.end_offset for segment in each.log.segments):
            return True
        else:
            size_bytes += each.max_bytes
    return size_bytes >= min_bytes


def _take_read_ahead(broker: Broker, reads: Sequence[_LogRead], max_bytes: int) -> int:
    """Take records that were read ahead into the response, and return their bytes.

    Partitions before them keep the room for all that they may have, so that no partition is passed over.
    """
    size_bytes = planned_bytes = 0
    for each in reads:
        room_bytes = min(each.max_bytes, max_bytes - planned_bytes)
        records = broker.read_ahead.take(each.log, each.offset, each.end_offset, room_bytes)
        if records is None:
            planned_bytes += each.max_bytes
        else:
            each.answered.records = records
            planned_bytes += len(records)
            size_bytes += len(records)
    return size_bytes


async def _read_logs(
    broker: Broker, reads: Sequence[_LogRead], size_bytes: int, max_bytes: int, *, is_committed: bool
) -> int:
    """Read partitions in this order. The response has ``size_bytes`` before, and as many as are returned after it.

    Neighbours that are read in the same place are read together, because a change of threads takes longer than a read.
    """
    find_place = broker.reads.place_of_search if is_committed else broker.reads.place_of_read
    cached_bytes = 0

    def place_of(each: _LogRead) -> ReadPlace:
        nonlocal cached_bytes
        place, wanted_bytes = find_place(each.log, each.offset), min(each.max_bytes, max_bytes)
        has_choice = place is ReadPlace.IO_THREAD and not is_committed
        if has_choice and cached_bytes + wanted_bytes <= _CACHED_BYTES_MAX:
            place = broker.reads.place_of_cached_read(each.log, each.offset, wanted_bytes)
            cached_bytes += wanted_bytes if place is ReadPlace.EVENT_LOOP else 0
        return place

    for place, group in groupby(reads, place_of):
        if size_bytes and size_bytes >= max_bytes:
            break  # no room for more
        together = list(group)
        try:
            size_bytes = await broker.reads.run_in(
                place, _read_in_order, together, size_bytes, max_bytes, is_committed=is_committed
            )
        except MillraceError as error:  # no thread takes the reads
            for each in together:
                each.answered.result.error.CopyFrom(error_message(error))
    return size_bytes


def _read_in_order(reads: Sequence[_LogRead], size_bytes: int, max_bytes: int, *, is_committed: bool) -> int:
    """Read batches of each partition into its part of the response, which has ``size_bytes`` so far."""
    for answered, log, offset, end_offset, partition_max_bytes in reads:
        left_bytes = min(partition_max_bytes, max_bytes - size_bytes)
        is_first = size_bytes == 0
        if left_bytes <= 0 and not is_first:
            continue
        try:
            records = log.read(offset, max(0, left_bytes), end_offset=end_offset, min_one_batch=is_first)
            if is_committed:
                answered.result.aborted_transactions.extend(map(aborted_message, log.aborted_within(offset, records)))
        except Exception as error:  # noqa: BLE001 - the partition's error; unexpected errors are logged
            answered.result.error.CopyFrom(error_message(error))
        else:
            answered.records = records
            size_bytes += len(records)
    return size_bytes


def _is_sent_elsewhere(
    broker: Broker,
    request: pb.FetchRequest,
    partition: ServedPartition,
    wanted: pb.FetchRequest.PartitionFetch,
    result: pb.FetchResponse.PartitionRecords,
) -> bool:
    """Return whether the caller should fetch from a closer replica. If so, the result names that replica (KIP-392)."""
    if not partition.replica.leads:
        return False
    preferred = broker.replicas.preferred_read_replica(
        partition.replica, request.rack_id, wanted.fetch_offset, broker.member.live_brokers
    )
    if preferred is None:
        return False
    _describe(result, partition.log)
    result.preferred_read_replica = preferred
    return True


def _diverges(
    result: pb.FetchResponse.PartitionRecords, log: PartitionLog, wanted: pb.FetchRequest.PartitionFetch
) -> bool:
    """Return whether the caller's log diverges from this log. If so, the result has the diverging epoch."""
    parted_at = divergence(log, wanted.last_fetched_epoch, wanted.fetch_offset)
    if parted_at is not None:
        result.diverging_epoch.CopyFrom(parted_at)
    return parted_at is not None


def _describe(result: pb.FetchResponse.PartitionRecords, log: PartitionLog) -> None:
    result.high_watermark = log.high_watermark
    result.last_stable_offset = log.last_stable_offset
    result.log_start_offset = log.log_start_offset
