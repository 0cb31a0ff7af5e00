"""Handler of LocateRange, which maps offsets to extents of segment files.

``direct.reads.enable`` decides which callers get paths. By default, these are the callers on this host. Reads of a path
bypass the broker, so only the files' permissions protect the data. A query planner calls LocateRange, but other
processes read the extents, and they check themselves whether a file exists. Paths are omitted for compacted topics, and
for segments that begin with messages of magic 0 or 1. All callers get the URIs of copies in the remote store, unless
``direct.reads.enable`` is false, because the store has its own permissions.
"""

from __future__ import annotations

from millrace.errors import InvalidRequestError
from millrace.protocol import millrace_pb2 as pb
from millrace_broker.api.common.access_rules import authorized
from millrace_broker.api.common.ranges import aborted_transactions, check_range, end_of, find_partition
from millrace_broker.api.common.request_context import RequestContext
from millrace_broker.broker import Broker
from millrace_broker.network.sockets import is_own_address

_TO_THE_END = -1


@authorized("LocateRange")
async def handle(broker: Broker, request: pb.LocateRangeRequest, context: RequestContext) -> pb.LocateRangeResponse:
    """Cut the range into extents of about ``split_bytes``. An empty range has none."""
    if request.split_bytes < 0:
        raise InvalidRequestError(f"split_bytes={request.split_bytes}: expected 0 (one extent per segment) or more")
    partition = find_partition(broker.partitions, request)
    log = partition.log
    readable_end = end_of(partition.log, request.isolation_level)
    end_offset = readable_end if request.end_offset == _TO_THE_END else request.end_offset
    check_range(partition, request.start_offset, end_offset, readable_end)
    response = pb.LocateRangeResponse(
        topic_id=partition.topic.topic_id.bytes,
        log_start_offset=log.log_start_offset,
        high_watermark=log.high_watermark,
        last_stable_offset=log.last_stable_offset,
    )
    if end_offset == request.start_offset:
        return response
    told = broker.config.direct_reads
    # Compaction replaces files under the same names, which invalidates the positions.
    names_paths = not partition.topic.config.is_compacted and (
        told == "all" or (told == "local" and is_own_address(context.client_address.host))
    )
    names_uris = told != "false"
    if request.isolation_level == pb.READ_COMMITTED:
        response.aborted_transactions.extend(
            await broker.reads.run_search(
                log, request.start_offset, aborted_transactions, log, request.start_offset, end_offset
            )
        )
    extents = await broker.reads.run_search(
        log, request.start_offset, log.locate, request.start_offset, end_offset, request.split_bytes
    )
    for extent in extents:
        response.extents.add(
            segment_base_offset=extent.segment_base_offset,
            start_offset=extent.start_offset,
            end_offset=extent.end_offset,
            start_position=extent.start_position,
            end_position=extent.end_position,
            path=str(extent.path) if names_paths and not extent.uri and not extent.has_messages else "",
            uri=extent.uri if names_uris and not extent.has_messages else "",
        )
    return response
