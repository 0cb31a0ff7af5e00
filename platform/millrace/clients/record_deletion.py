"""Deletion of records before an offset, at each partition's leader."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from millrace.clients.connections import Connections
from millrace.clients.leaders import LeaderCall, ask_leaders
from millrace.clients.metadata import MetadataCache
from millrace.clients.model import TopicPartition
from millrace.errors import MillraceError, UsageError
from millrace.protocol import millrace_pb2 as pb
from millrace.protocol.item_errors import error_in

HIGH_WATERMARK: Final = -1
_WORDS: Final = {"latest": HIGH_WATERMARK, "end": HIGH_WATERMARK}


def delete_records(
    connections: Connections,
    metadata: MetadataCache,
    before: Mapping[TopicPartition, int | str],
    *,
    timeout_ms: int,
) -> tuple[dict[TopicPartition, int], dict[TopicPartition, MillraceError]]:
    """Delete records at each partition's leader; returns the new log start offsets, and errors by partition."""
    offsets = {TopicPartition(*partition): _offset(offset) for partition, offset in before.items()}

    def request(partitions: Sequence[TopicPartition]) -> pb.DeleteRecordsRequest:
        topics: dict[str, pb.DeleteRecordsRequest.TopicOffsets] = {}
        for partition in partitions:
            topic = topics.setdefault(partition.topic, pb.DeleteRecordsRequest.TopicOffsets(name=partition.topic))
            topic.partitions.add(partition=partition.partition, offset=offsets[partition])
        return pb.DeleteRecordsRequest(timeout_ms=timeout_ms, topics=topics.values())

    # The call is idempotent, so retries are safe.
    call = LeaderCall(lambda stub: stub.DeleteRecords, request, lambda response, partitions: _starts(response))
    answers = ask_leaders(connections, metadata, offsets, call, timeout_ms=timeout_ms)
    starts = {each: answer for each, answer in answers.items() if not isinstance(answer, MillraceError)}
    return starts, {each: answer for each, answer in answers.items() if isinstance(answer, MillraceError)}


def _starts(response: pb.DeleteRecordsResponse) -> dict[TopicPartition, int | MillraceError]:
    return {
        TopicPartition(result.name, each.partition): (error_in(each.error) or each.low_watermark)
        for result in response.topics
        for each in result.partitions
    }


def _offset(offset: int | str) -> int:
    if isinstance(offset, str):
        if offset not in _WORDS:
            raise UsageError(f"offset {offset!r}: it is a number, or latest for all records")
        return _WORDS[offset]
    return offset
