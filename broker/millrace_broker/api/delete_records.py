"""Handler of DeleteRecords, which deletes records before an offset (KIP-107).

Errors are reported per partition.
"""

from __future__ import annotations

from typing import Final

from millrace.protocol import millrace_pb2 as pb
from millrace_broker.api.common.access_rules import authorized
from millrace_broker.api.common.errors import error_message
from millrace_broker.api.common.request_context import RequestContext
from millrace_broker.broker import Broker
from millrace_broker.metadata import topic_rules

_HIGH_WATERMARK: Final = -1
_FAILED: Final = -1
_TIMEOUT_S: Final = 30.0
"""Timeout of requests that set none."""


@authorized("DeleteRecords")
async def handle(broker: Broker, request: pb.DeleteRecordsRequest, context: RequestContext) -> pb.DeleteRecordsResponse:
    """Advance each partition's log start offset. The change survives a power failure once the call returns.

    The partitions wait for their replicas at the same time.
    """
    response = pb.DeleteRecordsResponse()
    timeout_s = request.timeout_ms / 1000 or _TIMEOUT_S
    works = []
    for topic_offsets in request.topics:
        topic_result = response.topics.add(name=topic_offsets.name)
        for wanted in topic_offsets.partitions:
            result = topic_result.partitions.add(partition=wanted.partition)
            works.append(_delete(broker, topic_offsets, wanted, result, timeout_s))
    await broker.executors.all_to_the_end(works)
    return response


async def _delete(
    broker: Broker,
    topic_offsets: pb.DeleteRecordsRequest.TopicOffsets,
    wanted: pb.DeleteRecordsRequest.PartitionOffset,
    result: pb.DeleteRecordsResponse.PartitionResult,
    timeout_s: float,
) -> None:
    """Delete the records of a partition, and complete its result."""
    try:
        topic = broker.partitions.topic(topic_offsets.name, topic_offsets.topic_id)
        topic_rules.check_not_internal(topic.name)
        partition = broker.partitions.led(topic, wanted.partition)
        offset = partition.log.high_watermark if wanted.offset == _HIGH_WATERMARK else wanted.offset
        result.low_watermark = await broker.appends.delete_records(partition, offset, timeout_s)
    except Exception as error:  # noqa: BLE001 - the partition's error; unexpected errors are logged
        result.low_watermark = _FAILED
        result.error.CopyFrom(error_message(error))
