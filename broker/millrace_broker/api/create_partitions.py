"""CreatePartitions: more partitions for existing topics."""

from __future__ import annotations

from millrace.protocol import millrace_pb2 as pb
from millrace_broker.api.call import Call, error_message
from millrace_broker.broker import Broker
from millrace_broker.metadata import rules


async def handle(broker: Broker, request: pb.CreatePartitionsRequest, call: Call) -> pb.CreatePartitionsResponse:
    """Raise the number of partitions of each topic to the one given, or say why not."""
    response = pb.CreatePartitionsResponse()
    for topic in request.topics:
        result = response.results.add(name=topic.name)
        try:
            rules.check_not_internal(topic.name)
            await broker.administer(
                broker.changes.create_partitions, topic.name, topic.count, validate_only=request.validate_only
            )
        except Exception as error:  # noqa: BLE001 - stands beside the topic, unexpected ones are logged
            result.error.CopyFrom(error_message(error))
    return response
