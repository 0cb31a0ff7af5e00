"""Handler of CreateTopics, which creates or refuses each topic separately."""

from __future__ import annotations

from collections import Counter

from millrace.errors import InvalidRequestError, RequestTimedOutError
from millrace.protocol import millrace_pb2 as pb
from millrace_broker.api.common.access_rules import authorized
from millrace_broker.api.common.chosen_replicas import chosen_replicas
from millrace_broker.api.common.errors import error_message
from millrace_broker.api.common.request_context import RequestContext
from millrace_broker.broker import Broker
from millrace_broker.metadata import TopicSpec
from millrace_broker.runtime.turns import Turns


@authorized("CreateTopics")
async def handle(broker: Broker, request: pb.CreateTopicsRequest, context: RequestContext) -> pb.CreateTopicsResponse:
    """Create the topics. Topics accept records when the call returns."""
    response, turns = pb.CreateTopicsResponse(), Turns()
    times = Counter(topic.name for topic in request.topics)
    for topic in request.topics:
        await turns.next()
        result = response.results.add(name=topic.name)
        try:
            if times[topic.name] > 1:
                raise InvalidRequestError(
                    f"topic {topic.name} is in the request {times[topic.name]} times: name it once"
                )
            if context.usage is not None:
                context.usage.check_mutation()
            info = await broker.executors.administer(
                broker.changes.create, _spec(topic), validate_only=request.validate_only
            )
        except Exception as error:  # noqa: BLE001 - the topic's error; unexpected errors are logged
            result.error.CopyFrom(error_message(error))
            continue
        if info is not None:
            result.topic_id = info.topic_id.bytes
            result.schema_id = info.schema_id
            if context.usage is not None:
                context.usage.mutated(len(info.partitions))
            result.num_partitions = len(info.partitions)
    created = [result.name for result in response.results if result.topic_id]
    late = set(await broker.member.topics.led(created, request.timeout_ms))
    for result in response.results:
        if result.name in late:
            late_error = RequestTimedOutError(
                f"topic {result.name} is created, but not all of its partitions have leaders yet"
            )
            result.error.CopyFrom(error_message(late_error))
    return response


def _spec(topic: pb.NewTopic) -> TopicSpec:
    return TopicSpec(
        name=topic.name,
        partitions=topic.num_partitions,
        replication_factor=topic.replication_factor,
        configs=dict(topic.configs),
        arrow_schema=topic.arrow_schema,
        key_columns=tuple(topic.key_columns),
        assignment=chosen_replicas(topic.assignment),
    )
