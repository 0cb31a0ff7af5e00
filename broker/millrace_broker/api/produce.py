"""Handler of Produce, which appends batches to partitions, each partition separately.

Requests of one connection may overtake each other. gRPC carries each call in its own HTTP/2 stream, whereas Kafka's
connection is a queue. A batch of an idempotent producer may therefore arrive before its predecessor. Such a batch waits
briefly for its predecessor before it is refused.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from itertools import islice
from typing import Final

from millrace.config.topic import MessageTimestampType
from millrace.errors import (
    InvalidProducerEpochError,
    InvalidRecordError,
    InvalidRequestError,
    InvalidRequiredAcksError,
    InvalidTxnStateError,
    NotEnoughReplicasError,
    OutOfOrderSequenceError,
    ProducerFencedError,
)
from millrace.protocol import millrace_pb2 as pb
from millrace_broker.api.common.errors import error_message
from millrace_broker.api.common.record_checks import check_records
from millrace_broker.api.common.request_context import RequestContext
from millrace_broker.broker import Broker
from millrace_broker.log import AppendResult, ProducedBatches
from millrace_broker.metadata import TopicInfo, rules
from millrace_broker.replication.runtime import ServedPartition
from millrace_broker.transactions import ProducerIdAndEpoch

_logger = logging.getLogger(__name__)

_ACKS: Final = (-1, 0, 1)
_ALL: Final = -1
_RECORD_ERRORS_MAX: Final = 10_000
"""Number of bad records that an answer names."""
_OVERTAKING_WAIT_S: Final = 0.5
"""How long a batch waits for its predecessors. Overtaking lasts milliseconds; a lost predecessor is resent later."""


async def handle(broker: Broker, request: pb.ProduceRequest, context: RequestContext) -> pb.ProduceResponse:
    """Append, and answer with the offsets. With ``acks=0`` the answer is empty, and errors are only logged."""
    if request.acks not in _ACKS:
        raise InvalidRequiredAcksError(f"acks={request.acks}: expected 0, 1 or -1 (all)")
    names = [(topic.name, data.partition) for topic in request.topics for data in topic.partitions]
    if len(set(names)) != len(names):
        raise InvalidRequestError("a partition is in the request twice: put its batches together")
    # A started append runs to its end even if the call is cancelled, so that delayed fetches always complete.
    return await broker.executors.to_the_end(_append_all(broker, request))


async def _append_all(broker: Broker, request: pb.ProduceRequest) -> pb.ProduceResponse:
    response = pb.ProduceResponse()
    appends = []
    for topic_data in request.topics:
        topic_result = response.topics.add(name=topic_data.name)
        for data in topic_data.partitions:
            result = topic_result.partitions.add(partition=data.partition)
            appends.append(_append(broker, request, topic_data, data, result))
    if len(appends) == 1:
        await appends[0]
    else:
        await asyncio.gather(*appends)
    if request.acks == 0:
        _log_failures(response)
        return pb.ProduceResponse()
    return response


async def _append(
    broker: Broker,
    request: pb.ProduceRequest,
    topic_data: pb.ProduceRequest.TopicData,
    data: pb.ProduceRequest.PartitionData,
    result: pb.ProduceResponse.PartitionResult,
) -> None:
    try:
        topic = broker.partitions.topic(topic_data.name, topic_data.topic_id)
        rules.check_not_internal(topic.name)
        partition = broker.partitions.led(topic, data.partition)
        if request.acks == _ALL and partition.replica is None:
            _check_replicas(topic, partition)
        batches = await check_records(
            broker.executors,
            broker.record_codecs,
            topic,
            data.records,
            broker.clock.now_ms(),
            in_transaction=bool(request.transactional_id),
        )
        check = await _verify(broker, request, partition, batches) if request.transactional_id else None
        appended = await _append_in_order(broker, request, partition, batches, check)
    except Exception as error:  # noqa: BLE001 - the partition's error; unexpected errors are logged
        result.base_offset = -1
        result.log_append_time_ms = -1
        result.log_start_offset = -1
        result.error.CopyFrom(error_message(error))
        if isinstance(error, InvalidRecordError):
            for index, text in islice(error.record_errors.items(), _RECORD_ERRORS_MAX):
                result.record_errors.add(batch_index=index, message=text)
        return
    is_stamped = topic.config.message_timestamp_type is MessageTimestampType.LOG_APPEND_TIME
    result.base_offset = appended.base_offset
    result.log_append_time_ms = appended.log_append_time_ms if is_stamped else -1
    result.log_start_offset = appended.log_start_offset


def _check_replicas(topic: TopicInfo, partition: ServedPartition) -> None:
    in_sync, wanted = len(partition.info.isr), topic.config.min_insync_replicas
    if in_sync < wanted:
        raise NotEnoughReplicasError(
            f"{topic.name}-{partition.info.partition} has {in_sync} in-sync replicas, min.insync.replicas is {wanted}: "
            "nothing was appended. Wait for replicas, or lower it"
        )


async def _verify(
    broker: Broker, request: pb.ProduceRequest, partition: ServedPartition, batches: ProducedBatches
) -> Callable[[], None] | None:
    """Raise unless the partition is part of the records' transaction (KIP-890).

    A partition that already has records of the transaction is part of it. Otherwise ask the coordinator, or let it add
    the partition. The transaction may end meanwhile. The returned check then refuses the append, because its end marker
    has changed the guard. Without it, records of a producer that keeps its epoch would stay open in the partition for
    ever.
    """
    header, (topic, number) = batches.headers[0][1], partition.key
    producer_id, epoch = header.producer_id, header.producer_epoch
    guard = partition.log.find_producer(producer_id)
    is_known = guard is not None and guard.has_open_transaction(epoch)
    if is_known or not header.is_transactional or not broker.config.transaction_partition_verification_enable:
        return None
    try:
        find = broker.transactions.join if request.adds_partitions else broker.transactions.verify
        await find(
            request.transactional_id,
            ProducerIdAndEpoch(producer_id, epoch),
            partition.key,
            coordinator_key=request.coordinator_key,
        )
    except ProducerFencedError as error:
        raise InvalidProducerEpochError(error.message) from None  # the error that a partition uses for it

    def check() -> None:
        now = partition.log.find_producer(producer_id)
        if now is not guard and not (now is not None and now.has_open_transaction(epoch)):
            raise InvalidTxnStateError(
                f"the transaction of producer {producer_id} with epoch {epoch} ended before these records for "
                f"{topic}-{number} were appended: begin another transaction"
            )

    return check


async def _append_in_order(
    broker: Broker,
    request: pb.ProduceRequest,
    partition: ServedPartition,
    batches: ProducedBatches,
    check: Callable[[], None] | None,
) -> AppendResult:
    deadline = broker.clock.monotonic() + _OVERTAKING_WAIT_S
    while True:
        watch = broker.waiters.appends.watch([partition.key])
        try:
            return await broker.appends.append(
                partition,
                batches,
                check=check,
                acks_all=request.acks == _ALL,
                timeout_s=request.timeout_ms / 1000,
            )
        except OutOfOrderSequenceError:
            left_s = deadline - broker.clock.monotonic()
            if left_s <= 0 or not await watch.wait(wanted_bytes=1, timeout_s=left_s):
                raise


def _log_failures(response: pb.ProduceResponse) -> None:
    for topic in response.topics:
        for result in topic.partitions:
            if result.HasField("error"):
                _logger.warning("acks=0 append to %s-%d failed: %s", topic.name, result.partition, result.error.message)
