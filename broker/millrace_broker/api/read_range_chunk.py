"""Handler of ReadRangeChunk, which returns the first batches of an offset range.

The call is ReadRange for clients in Kafka's framing, where a call has one response. A client requests the next chunk
while it processes the last one.
"""

from __future__ import annotations

from millrace.protocol import millrace_pb2 as pb
from millrace_broker.api.common.access_rules import authorized
from millrace_broker.api.common.request_context import RequestContext
from millrace_broker.api.read_range import CHUNK_BYTES, read_chunk, readable_partition
from millrace_broker.broker import Broker


@authorized("ReadRangeChunk")
async def handle(broker: Broker, request: pb.ReadRangeRequest, context: RequestContext) -> pb.ReadRangeResponse:
    """Return a chunk of whole batches, as ReadRange does, without aborted transactions.

    The chunk is empty if the range has no batches.
    """
    partition = readable_partition(broker, request)
    start_offset, end_offset = request.start_offset, request.end_offset
    if start_offset == end_offset:
        return pb.ReadRangeResponse()
    await context.response_lease.take(CHUNK_BYTES)
    records, _ = await broker.reads.run_read(
        partition.log, start_offset, read_chunk, partition, start_offset, end_offset
    )
    return pb.ReadRangeResponse(records=records)
