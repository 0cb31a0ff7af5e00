"""Deleting the records of partitions before an offset, each partition at its leader."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from typing import Final

from millrace.clients.connections import Connections
from millrace.clients.metadata import MetadataCache
from millrace.clients.model import TopicPartition
from millrace.errors import MillraceError, NotLeaderError, UsageError, error_of
from millrace.protocol import millrace_pb2 as pb

HIGH_WATERMARK: Final = -1
_WORDS: Final = {"latest": HIGH_WATERMARK, "end": HIGH_WATERMARK}


def delete_records(
    connections: Connections,
    metadata: MetadataCache,
    before: Mapping[TopicPartition, int | str],
    *,
    timeout_ms: int,
) -> tuple[dict[TopicPartition, int], dict[TopicPartition, MillraceError]]:
    """Ask the leader of each partition to delete: where the logs start now, and what went wrong elsewhere."""
    by_address: dict[str, dict[str, list[tuple[int, int]]]] = defaultdict(lambda: defaultdict(list))
    for partition, offset in before.items():
        address = metadata.leader_address(TopicPartition(*partition))
        by_address[address][partition[0]].append((partition[1], _offset(offset)))
    starts: dict[TopicPartition, int] = {}
    failed: dict[TopicPartition, MillraceError] = {}
    for address, topics in by_address.items():
        request = pb.DeleteRecordsRequest(timeout_ms=timeout_ms)
        for name, offsets in topics.items():
            topic = request.topics.add(name=name)
            for number, offset in offsets:
                topic.partitions.add(partition=number, offset=offset)
        # To delete the same again changes nothing, so it may be sent again.
        response = connections.call(lambda stub: stub.DeleteRecords, request, address=address)
        for result in response.topics:
            for answer in result.partitions:
                partition = TopicPartition(result.name, answer.partition)
                if not answer.error.code:
                    starts[partition] = answer.low_watermark
                    continue
                failed[partition] = error_of(answer.error.code, answer.error.message)
                if isinstance(failed[partition], NotLeaderError):
                    metadata.forget(result.name)
    return starts, failed


def _offset(offset: int | str) -> int:
    if isinstance(offset, str):
        if offset not in _WORDS:
            raise UsageError(f"offset {offset!r}: it is a number, or latest for all records")
        return _WORDS[offset]
    return offset
