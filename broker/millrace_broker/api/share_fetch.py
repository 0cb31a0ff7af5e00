"""Handler of ShareFetch (KIP-932).

The call acquires records for a member of a share group. The request's acknowledgements are processed first. A request
whose limits are 0 only acknowledges.
"""

from __future__ import annotations

from millrace.protocol import millrace_pb2 as pb
from millrace_broker.api.common.access_rules import authorized
from millrace_broker.api.common.errors import error_message
from millrace_broker.api.common.request_context import RequestContext
from millrace_broker.api.common.share_acknowledgements import acknowledge_all
from millrace_broker.broker import Broker
from millrace_broker.share_groups import FetchLimits, ShareFetchPartition, SharePartitionData


@authorized("ShareFetch")
async def handle(broker: Broker, request: pb.ShareFetchRequest, context: RequestContext) -> pb.ShareFetchResponse:
    """Acknowledge, then acquire records. If none are available, wait up to ``max_wait_ms``."""
    coordinator = broker.share_groups
    lock_ms = coordinator.settings_of(request.group_id).lock_duration_ms
    response = pb.ShareFetchResponse(acquisition_lock_timeout_ms=lock_ms)
    wanted: list[ShareFetchPartition] = []
    results: list[pb.ShareFetchResponse.PartitionRecords] = []
    acknowledgements = []
    for topic_fetch in request.topics:
        topic_records = response.topics.add(name=topic_fetch.name, topic_id=topic_fetch.topic_id)
        for each in topic_fetch.partitions:
            result = topic_records.partitions.add(partition=each.partition)
            wanted.append(ShareFetchPartition(topic_fetch.name, topic_fetch.topic_id, each.partition))
            results.append(result)
            acknowledgements.append((topic_fetch.name, each.partition, each.acknowledgements))
    errors = await acknowledge_all(broker, request.group_id, request.member_id, acknowledgements)
    for result, error in zip(results, errors, strict=True):
        if error is not None:
            result.acknowledge_error.CopyFrom(error_message(error))
    limits = FetchLimits(
        records_max=request.max_records,
        bytes_max=min(request.max_bytes, broker.config.fetch_max_bytes),
        # A failed acknowledgement is reported without delay.
        wait_ms=0 if any(errors) else request.max_wait_ms,
        whole_batches=request.whole_batches,
    )
    if limits.records_max <= 0 or limits.bytes_max <= 0:
        return response
    fetched = await coordinator.fetch(request.group_id, request.member_id, wanted, limits, context.response_lease)
    for result, each_fetched in zip(results, fetched, strict=True):
        _fill(result, each_fetched)
    return response


def _fill(result: pb.ShareFetchResponse.PartitionRecords, fetched: SharePartitionData) -> None:
    if fetched.error is not None:
        result.error.CopyFrom(error_message(fetched.error))
        return
    result.records = fetched.records
    for run in fetched.acquired:
        result.acquired.add(first_offset=run.first, last_offset=run.last, delivery_count=run.delivery_count)
