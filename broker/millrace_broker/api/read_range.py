"""Handler of ReadRange, which streams the batches of an offset range.

The call serves readers that cannot open the segment files. A chunk is read after the caller has taken the previous one,
which bounds the memory in use.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Final

from millrace.protocol import millrace_pb2 as pb
from millrace.records import end_of_batches
from millrace_broker.api.common.access_rules import authorized
from millrace_broker.api.common.ranges import aborted_transactions, check_range, end_of, find_partition
from millrace_broker.api.common.request_context import RequestContext
from millrace_broker.broker import Broker
from millrace_broker.replication.runtime import ServedPartition

CHUNK_BYTES: Final = 2**20


@authorized("ReadRange")
async def handle(
    broker: Broker, request: pb.ReadRangeRequest, context: RequestContext
) -> AsyncIterator[pb.ReadRangeResponse]:
    """Yield chunks of whole batches. The first batch may begin before the range, and the last may end after it.

    For ``READ_COMMITTED``, the first chunk lists the aborted transactions of the whole range.
    """
    partition = readable_partition(broker, request)
    offset = request.start_offset
    aborted: list[pb.AbortedTransaction] = []
    if request.isolation_level == pb.READ_COMMITTED:
        log = partition.log
        aborted = await broker.reads.run_search(log, offset, aborted_transactions, log, offset, request.end_offset)
    while offset < request.end_offset:
        await context.response_lease.take(CHUNK_BYTES)
        records, offset = await broker.reads.run_read(
            partition.log, offset, read_chunk, partition, offset, request.end_offset
        )
        yield pb.ReadRangeResponse(records=records, aborted_transactions=aborted)
        aborted = []
        del records
        context.response_lease.release()


def readable_partition(broker: Broker, request: pb.ReadRangeRequest) -> ServedPartition:
    """Return the partition of a request. Raises the errors of ``find_partition`` and ``check_range``."""
    partition = find_partition(broker.partitions, request)
    check_range(partition, request.start_offset, request.end_offset, end_of(partition.log, request.isolation_level))
    return partition


def read_chunk(partition: ServedPartition, offset: int, end_offset: int) -> tuple[bytes, int]:
    """Read the next chunk. Return it and the offset that follows it. Reads the disk."""
    records = partition.log.read(offset, CHUNK_BYTES, end_offset=end_offset)
    # If compaction has emptied the end of the range, no batch is left to read.
    return records, end_of_batches(records, end_offset)
