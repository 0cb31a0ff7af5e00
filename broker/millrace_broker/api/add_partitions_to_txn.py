"""Handler of AddPartitionsToTxn, which adds partitions to a transaction before its writes."""

from __future__ import annotations

from millrace.errors import MillraceError, OperationNotAttemptedError, UnknownTopicOrPartitionError
from millrace.protocol import millrace_pb2 as pb
from millrace_broker.api.common.access_rules import authorized
from millrace_broker.api.common.errors import error_message
from millrace_broker.api.common.request_context import RequestContext
from millrace_broker.broker import Broker
from millrace_broker.metadata import topic_rules
from millrace_broker.runtime.turns import Turns
from millrace_broker.transactions import ProducerIdAndEpoch


@authorized("AddPartitionsToTxn")
async def handle(
    broker: Broker, request: pb.AddPartitionsToTxnRequest, context: RequestContext
) -> pb.AddPartitionsToTxnResponse:
    """Add all partitions. If one of them is refused, add none, and report that partition's own error."""
    if request.verify_only:
        return await _verify(broker, request)
    wanted = [(topic.name, number) for topic in request.topics for number in topic.partitions]
    problems, turns = {}, Turns()
    for partition in wanted:
        await turns.next()
        problem = _problem(broker, *partition)
        if problem is not None:
            problems[partition] = problem
    if not problems:
        await broker.transactions.add_partitions(
            request.transactional_id,
            ProducerIdAndEpoch(request.producer_id, request.producer_epoch),
            wanted,
            coordinator_key=request.coordinator_key,
        )
    response = pb.AddPartitionsToTxnResponse()
    for topic in request.topics:
        errors = response.topics.add(name=topic.name)
        for number in topic.partitions:
            await turns.next()
            result = errors.partitions.add(partition=number)
            if problems:
                skipped = OperationNotAttemptedError("not added, because another partition of the request was refused")
                result.error.CopyFrom(error_message(problems.get((topic.name, number), skipped)))
    return response


async def _verify(broker: Broker, request: pb.AddPartitionsToTxnRequest) -> pb.AddPartitionsToTxnResponse:
    """Check for a partition leader whether each partition is part of the open transaction (KIP-890)."""
    response, turns = pb.AddPartitionsToTxnResponse(), Turns()
    producer = ProducerIdAndEpoch(request.producer_id, request.producer_epoch)
    for topic in request.topics:
        errors = response.topics.add(name=topic.name)
        for number in topic.partitions:
            await turns.next()
            result = errors.partitions.add(partition=number)
            try:
                await broker.transactions.verify_here(
                    request.transactional_id, producer, (topic.name, number), coordinator_key=request.coordinator_key
                )
            except MillraceError as error:
                result.error.CopyFrom(error_message(error))
    return response


def _problem(broker: Broker, name: str, number: int) -> MillraceError | None:
    try:
        topic_rules.check_not_internal(name)
        if number not in broker.partitions.topic(name).partitions:
            raise UnknownTopicOrPartitionError(f"topic {name} has no partition {number}")
    except MillraceError as error:
        return error
    return None
