"""Handler of DeleteTopics, which deletes or refuses each topic separately."""

from __future__ import annotations

from millrace.errors import RequestTimedOutError
from millrace.protocol import millrace_pb2 as pb
from millrace_broker.api.common.access_rules import authorized
from millrace_broker.api.common.errors import error_message
from millrace_broker.api.common.request_context import RequestContext
from millrace_broker.broker import Broker
from millrace_broker.metadata import topic_rules


@authorized("DeleteTopics")
async def handle(broker: Broker, request: pb.DeleteTopicsRequest, context: RequestContext) -> pb.DeleteTopicsResponse:
    """Delete the topics with their data. Their names can be reused when the call returns."""
    response = pb.DeleteTopicsResponse()
    for name in request.names:
        result = response.results.add(name=name)
        try:
            topic_rules.check_not_internal(name)
            if context.usage is not None:
                context.usage.check_mutation()
            topic = await broker.executors.administer(broker.changes.delete, name)
            if context.usage is not None:
                context.usage.mutated(len(topic.partitions))
            if not await broker.member.topics.gone(topic, request.timeout_ms):
                raise RequestTimedOutError(
                    f"topic {name} is marked for deletion, which ends when all brokers with its partitions are alive"
                )
            result.topic_id = topic.topic_id.bytes
        except Exception as error:  # noqa: BLE001 - the topic's error; unexpected errors are logged
            result.error.CopyFrom(error_message(error))
    return response
