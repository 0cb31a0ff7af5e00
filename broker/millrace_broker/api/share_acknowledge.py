"""Handler of ShareAcknowledge (KIP-932).

The call acknowledges records that were delivered to a member of a share group.
"""

from __future__ import annotations

import logging

from millrace.errors import MillraceError
from millrace.protocol import millrace_pb2 as pb
from millrace_broker.api.common.access_rules import authorized
from millrace_broker.api.common.errors import error_message
from millrace_broker.api.common.request_context import RequestContext
from millrace_broker.api.common.share_acknowledgements import Acknowledgements, acknowledge_all
from millrace_broker.broker import Broker

_logger = logging.getLogger(__name__)


@authorized("ShareAcknowledge")
async def handle(
    broker: Broker, request: pb.ShareAcknowledgeRequest, context: RequestContext
) -> pb.ShareAcknowledgeResponse:
    """Acknowledge the records, then release those that the member no longer wants.

    Each partition's batches are accepted or refused together, and errors are reported per partition.
    """
    lock_ms = broker.share_groups.settings_of(request.group_id).lock_duration_ms
    response = pb.ShareAcknowledgeResponse(acquisition_lock_timeout_ms=lock_ms)
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
    for released in request.released:
        for partition in released.partitions:
            try:
                broker.share_groups.release_acquired(request.group_id, request.member_id, released.name, partition)
            except MillraceError as error:  # the records' locks end later all the same
                _logger.info("records of %s-%d are not released: %s", released.name, partition, error.message)
    return response
