"""Handler of ShareAcknowledge, which acknowledges records delivered to a share group's member (KIP-932)."""

from __future__ import annotations

from millrace.protocol import millrace_pb2 as pb
from millrace_broker.api.common.access_rules import authorized
from millrace_broker.api.common.errors import error_message
from millrace_broker.api.common.request_context import RequestContext
from millrace_broker.api.common.share_acknowledgements import Acknowledgements, acknowledge_all
from millrace_broker.broker import Broker


@authorized("ShareAcknowledge")
async def handle(
    broker: Broker, request: pb.ShareAcknowledgeRequest, context: RequestContext
) -> pb.ShareAcknowledgeResponse:
    """Acknowledge the records.

    Each partition's batches are accepted or refused together, and errors are reported per partition.
    """
    response = pb.ShareAcknowledgeResponse()
    results: list[pb.PartitionError] = []
    wanted: list[Acknowledgements] = []
    for topic in request.topics:
        topic_result = response.topics.add(name=topic.name)
        for each in topic.partitions:
            results.append(topic_result.partitions.add(partition=each.partition))
            wanted.append((topic.name, each.partition, each.acknowledgements))
    errors = await acknowledge_all(broker, request.group_id, request.member_id, wanted)
    for result, error in zip(results, errors, strict=True):
        if error is not None:
            result.error.CopyFrom(error_message(error))
    return response
