"""Handler of DeleteTopics, which deletes or refuses each topic separately."""

from __future__ import annotations

import asyncio

from millrace.errors import RequestTimedOutError
from millrace.protocol import millrace_pb2 as pb
from millrace_broker.api.common.access_rules import authorized
from millrace_broker.api.common.errors import error_message
from millrace_broker.api.common.request_context import RequestContext
from millrace_broker.broker import Broker
from millrace_broker.metadata import TopicInfo, topic_rules


@authorized("DeleteTopics")
async def handle(broker: Broker, request: pb.DeleteTopicsRequest, context: RequestContext) -> pb.DeleteTopicsResponse:
    """Delete the topics with their data. Their names can be reused when the call returns.

    All topics are marked for deletion before the call waits, because a dead broker delays the end of a deletion.
    """
    response = pb.DeleteTopicsResponse()
    marked: list[tuple[pb.DeleteTopicsResponse.Result, TopicInfo]] = []
    for name in request.names:
        result = response.results.add(name=name)
        try:
            topic_rules.check_not_internal(name)
            if context.usage is not None:
                context.usage.check_mutation()
            topic = await broker.executors.administer(broker.changes.delete, name)
        except Exception as error:  # noqa: BLE001 - the topic's error; unexpected errors are logged
            result.error.CopyFrom(error_message(error))
            continue
        if context.usage is not None:
            context.usage.mutated(len(topic.partitions))
        marked.append((result, topic))
    await asyncio.gather(*(_wait(broker, result, topic, request.timeout_ms) for result, topic in marked))
    return response


async def _wait(broker: Broker, result: pb.DeleteTopicsResponse.Result, topic: TopicInfo, timeout_ms: int) -> None:
    """Wait for the end of a deletion, and complete its result."""
    try:
        if not await broker.member.topics.gone(topic, timeout_ms):
            raise RequestTimedOutError(
                f"topic {topic.name} is marked for deletion, which ends when all brokers with its partitions are alive"
            )
        result.topic_id = topic.topic_id.bytes
    except Exception as error:  # noqa: BLE001 - the topic's error; unexpected errors are logged
        result.error.CopyFrom(error_message(error))
