"""Handler of DescribeProducers, which lists the active producers of partitions."""

from __future__ import annotations

from millrace.protocol import millrace_pb2 as pb
from millrace_broker.api.common.access_rules import authorized
from millrace_broker.api.common.errors import error_message
from millrace_broker.api.common.request_context import RequestContext
from millrace_broker.broker import Broker
from millrace_broker.runtime.turns import Turns

_NONE = -1


@authorized("DescribeProducers")
async def handle(
    broker: Broker, request: pb.DescribeProducersRequest, context: RequestContext
) -> pb.DescribeProducersResponse:
    """Describe the producers of each partition with a replica here (KIP-664).

    The transaction start offset reveals a hanging transaction.
    """
    response, turns = pb.DescribeProducersResponse(), Turns()
    for topic_partitions in request.topics:
        topic_producers = response.topics.add(name=topic_partitions.name)
        for number in topic_partitions.partitions:
            await turns.next()
            described = topic_producers.partitions.add(partition=number)
            try:
                topic = broker.partitions.topic(topic_partitions.name)
                partition = broker.partitions.led(topic, number, may_follow=True)
            except Exception as error:  # noqa: BLE001 - the partition's error; unexpected errors are logged
                described.error.CopyFrom(error_message(error))
                continue
            for entry in partition.log.producers:
                start = entry.open_transaction_offset
                described.producers.add(
                    producer_id=entry.producer_id,
                    producer_epoch=entry.epoch,
                    last_sequence=entry.last_sequence,
                    last_timestamp_ms=entry.last_timestamp_ms,
                    coordinator_epoch=entry.coordinator_epoch,
                    transaction_start_offset=_NONE if start is None else start,
                )
    return response
