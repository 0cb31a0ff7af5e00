"""Handler of Produce, which appends batches to partitions, each partition separately.

Requests of one connection may overtake each other. gRPC carries each call in its own HTTP/2 stream, whereas Kafka's
connection is a queue. A batch of an idempotent producer may therefore arrive before its predecessor. Such a batch waits
briefly for its predecessor before it is refused.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Final, NamedTuple

from millrace.config.topic import MessageTimestampType
from millrace.coordinator_records import AUDIT_TOPIC
from millrace.errors import (
    BrokerUnavailableError,
    CoordinatorLoadInProgressError,
    CoordinatorNotAvailableError,
    InvalidProducerEpochError,
    InvalidRecordError,
    InvalidRequestError,
    InvalidRequiredAcksError,
    InvalidTimestampError,
    LeaderNotAvailableError,
    MillraceError,
    NotCoordinatorError,
    NotEnoughReplicasError,
    OutOfOrderSequenceError,
    ProducerFencedError,
    RequestTimedOutError,
)
from millrace.protocol import millrace_pb2 as pb
from millrace_broker.api.common.access import CLUSTER_ACTION, access_for
from millrace_broker.api.common.access_rules import authorized
from millrace_broker.api.common.errors import known_error
from millrace_broker.api.common.record_checks import RECORD_ERRORS_MAX, check_records
from millrace_broker.api.common.request_context import RequestContext, in_progress
from millrace_broker.broker import Broker
from millrace_broker.log import AppendResult, ProducedBatches
from millrace_broker.log.transaction_guards import verified
from millrace_broker.metadata import topic_rules
from millrace_broker.replication.runtime import ServedPartition
from millrace_broker.transactions import ProducerIdAndEpoch

_logger = logging.getLogger(__name__)

_ACKS: Final = (-1, 0, 1)
_ALL: Final = -1
_NO_ANSWER: Final = 0
_OVERTAKING_WAIT_S: Final = 0.5
"""Time that a batch waits for its predecessors. Overtaking lasts milliseconds; a lost predecessor is resent later."""
_NO_COORDINATOR: Final = (
    BrokerUnavailableError,
    RequestTimedOutError,
    LeaderNotAvailableError,
    CoordinatorLoadInProgressError,
    CoordinatorNotAvailableError,
    NotCoordinatorError,
)
"""Errors of a coordinator that cannot be asked now. Producers do not expect them from the leader of a partition."""


class Producing(NamedTuple):
    """The fields of a request that apply to all of its partitions."""

    acks: int
    timeout_ms: int
    transactional_id: str = ""
    coordinator_key: str = ""
    adds_partitions: bool = False
    raises_epoch: bool = False
    """True if the end of a transaction raises the producer's epoch, so that each epoch begins with sequence 0."""
    writes_audit: bool = False
    """True if the request is a broker's, with rows of its audit."""


@dataclass(slots=True)
class PartitionAppend:
    """The batches for one partition, with the result of their append."""

    topic: str
    partition: int
    records: bytes | memoryview
    topic_id: bytes = b""
    base_offset: int = -1
    log_append_time_ms: int = -1
    log_start_offset: int = -1
    error: MillraceError | None = None
    record_errors: Mapping[int, str] = field(default_factory=dict)


@authorized("Produce")
async def handle(broker: Broker, request: pb.ProduceRequest, context: RequestContext) -> pb.ProduceResponse:
    """Append, and answer with the offsets. With ``acks=0`` the answer is empty, and errors are only logged."""
    producing = Producing(
        request.acks,
        request.timeout_ms,
        request.transactional_id,
        request.coordinator_key,
        request.adds_partitions,
        raises_epoch=True,
        writes_audit=any(each.name == AUDIT_TOPIC for each in request.topics) and _is_broker(broker, context),
    )
    response = pb.ProduceResponse()
    appends = []
    for topic_data in request.topics:
        topic_result = response.topics.add(name=topic_data.name)
        for data in topic_data.partitions:
            result = topic_result.partitions.add(partition=data.partition)
            records = context.records.get((topic_data.name, data.partition), data.records)
            part = PartitionAppend(topic_data.name, data.partition, records, topic_data.topic_id)
            appends.append((part, result))
    await append(broker, producing, [part for part, _ in appends])
    if request.acks == _NO_ANSWER:
        return pb.ProduceResponse()
    for part, result in appends:
        result.base_offset = part.base_offset
        result.log_append_time_ms = part.log_append_time_ms
        result.log_start_offset = part.log_start_offset
        if part.error is not None:
            result.error.code, result.error.message = part.error.code, part.error.message
        for index, text in part.record_errors.items():
            result.record_errors.add(batch_index=index, message=text)
    return response


def _is_broker(broker: Broker, context: RequestContext) -> bool:
    """Return whether a request is another broker's. Brokers that do not authenticate need ``CLUSTER_ACTION``."""
    if broker.config.authenticates_brokers or not broker.config.is_clustered:
        return context.is_broker
    access = access_for(broker, context)
    return access is not None and access.would_allow(CLUSTER_ACTION)


async def append(broker: Broker, request: Producing, appends: Sequence[PartitionAppend]) -> None:
    """Append to all partitions, and set the result of each. With ``acks=0`` errors are logged.

    Raises ``InvalidRequiredAcksError`` and ``InvalidRequestError`` for the request as a whole.
    """
    if request.acks not in _ACKS:
        raise InvalidRequiredAcksError(f"acks={request.acks}: expected 0, 1 or -1 (all)")
    if len({(each.topic, each.partition) for each in appends}) != len(appends):
        raise InvalidRequestError("a partition is in the request twice: put its batches together")
    # A started append runs to its end even if the call is cancelled, so that delayed fetches always complete.
    await broker.executors.all_to_the_end([_append(broker, request, each) for each in appends])
    _limit_record_errors(appends)
    if request.acks == _NO_ANSWER:
        for each in appends:
            if each.error is not None:
                _logger.warning("acks=0 append to %s-%d failed: %s", each.topic, each.partition, each.error.message)


def _limit_record_errors(appends: Sequence[PartitionAppend]) -> None:
    """Keep the first bad records only, because the event loop writes them to the response, in 4 µs each."""
    left = RECORD_ERRORS_MAX
    for each in appends:
        if each.record_errors:
            each.record_errors = dict(islice(each.record_errors.items(), left))
            left -= len(each.record_errors)


async def _append(broker: Broker, request: Producing, data: PartitionAppend) -> None:
    try:
        topic = broker.partitions.topic(data.topic, data.topic_id)
        if not (request.writes_audit and topic.name == AUDIT_TOPIC):
            topic_rules.check_not_internal(topic.name)
        partition = broker.partitions.led(topic, data.partition)
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
        # The traceback would keep this frame alive, which has the error itself, and the files in other frames.
        data.error = known_error(error).with_traceback(None)
        if isinstance(error, (InvalidRecordError, InvalidTimestampError)):
            data.record_errors = error.record_errors
            if not error.record_errors:  # the whole batch is wrong, which no working client sends
                _logger.warning(
                    "%s: a batch for %s-%d is refused: %s",
                    in_progress.get(),
                    data.topic,
                    data.partition,
                    data.error.message,
                )
        return
    is_stamped = topic.config.message_timestamp_type is MessageTimestampType.LOG_APPEND_TIME
    data.base_offset = appended.base_offset
    data.log_append_time_ms = appended.log_append_time_ms if is_stamped else -1
    data.log_start_offset = appended.log_start_offset


async def _verify(
    broker: Broker, request: Producing, partition: ServedPartition, batches: ProducedBatches
) -> Callable[[], None] | None:
    """Raise unless the partition is part of the records' transaction (KIP-890).

    A partition that already has records of the transaction is part of it. Otherwise ask the coordinator, or let it add
    the partition. The transaction may end meanwhile. The returned check then refuses the append.
    """
    header = batches.headers[0][1]
    producer_id, epoch = header.producer_id, header.producer_epoch
    entry = partition.log.find_producer(producer_id)
    is_known = entry is not None and entry.has_open_transaction(epoch)
    if is_known or not header.is_transactional:
        return None
    if entry is None:
        # A producer that keeps its epoch counts on over its transactions, and the partition may have forgotten it.
        partition.log.expect(producer_id, epoch, 0 if request.raises_epoch else header.base_sequence)
    # The option concerns the verification only. A producer that relies on its records to add their partition needs
    # the coordinator in any case.
    if not request.adds_partitions and not broker.config.transaction_partition_verification_enable:
        return None
    find = broker.transactions.join if request.adds_partitions else broker.transactions.verify
    verify = functools.partial(
        find,
        request.transactional_id,
        ProducerIdAndEpoch(producer_id, epoch),
        partition.key,
        coordinator_key=request.coordinator_key,
    )
    try:
        return await verified(partition.log, producer_id, epoch, verify, begins=request.adds_partitions)
    except ProducerFencedError as error:
        raise InvalidProducerEpochError(error.message) from None  # the error that a partition uses for it
    except _NO_COORDINATOR as error:
        raise NotEnoughReplicasError(error.message) from None  # the error after which all producers try again


async def _append_in_order(
    broker: Broker,
    request: Producing,
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
