"""Handler of CreatePartitions, which adds partitions to existing topics."""

from __future__ import annotations

from collections import Counter

from millrace.errors import InvalidRequestError, RequestTimedOutError
from millrace.protocol import millrace_pb2 as pb
from millrace_broker.api.common.access_rules import authorized
from millrace_broker.api.common.chosen_replicas import chosen_replicas
from millrace_broker.api.common.errors import error_message
from millrace_broker.api.common.request_context import RequestContext
from millrace_broker.broker import Broker
from millrace_broker.metadata import topic_rules
from millrace_broker.runtime.turns import Turns


@authorized("CreatePartitions")
async def handle(
    broker: Broker, request: pb.CreatePartitionsRequest, context: RequestContext
) -> pb.CreatePartitionsResponse:
    """Raise each topic's number of partitions to the requested count, or report its error.

    All partitions are created before the call waits for their leaders.
    """
    response, turns = pb.CreatePartitionsResponse(), Turns()
    times = Counter(topic.name for topic in request.topics)
    created = []
    for topic in request.topics:
        await turns.next()
        result = response.results.add(name=topic.name)
        try:
            if times[topic.name] > 1:
                raise InvalidRequestError(
                    f"topic {topic.name} is in the request {times[topic.name]} times: name it once"
                )
            topic_rules.check_not_internal(topic.name)
            before = _partitions(broker, topic.name)
            if context.usage is not None:
                context.usage.check_mutation()
            await broker.executors.administer(
                broker.changes.create_partitions,
                topic.name,
                topic.count,
                assignment=chosen_replicas(topic.assignment),
                validate_only=request.validate_only,
            )
        except Exception as error:  # noqa: BLE001 - the topic's error; unexpected errors are logged
            result.error.CopyFrom(error_message(error))
            continue
        if context.usage is not None:
            context.usage.mutated(max(0, _partitions(broker, topic.name) - before))
        if not request.validate_only:
            created.append(topic.name)
    late = set(await broker.member.topics.led(created, request.timeout_ms))
    for result in response.results:
        if result.name in late:
            late_error = RequestTimedOutError(
                f"the new partitions of {result.name} are created, but not all have leaders yet"
            )
            result.error.CopyFrom(error_message(late_error))
    return response


def _partitions(broker: Broker, topic: str) -> int:
    known = broker.catalog.topics.get(topic)
    return 0 if known is None else len(known.partitions)
