"""Kafka's DescribeShareGroupOffsets call (KIP-932, KIP-1226).

The call returns start offsets and lags of share groups.
"""

from __future__ import annotations

from typing import Final

from millrace.errors import GroupIdNotFoundError
from millrace.kafka_protocol.calls.describe_share_group_offsets import (
    DescribeShareGroupOffsetsRequest,
    DescribeShareGroupOffsetsRequestGroup,
    DescribeShareGroupOffsetsResponse,
    DescribeShareGroupOffsetsResponseGroup,
    DescribeShareGroupOffsetsResponsePartition,
    DescribeShareGroupOffsetsResponseTopic,
)
from millrace.protocol import millrace_pb2 as pb
from millrace.protocol.item_errors import check_item
from millrace_broker.api import known_error
from millrace_broker.kafka_api.call import KafkaRequest
from millrace_broker.kafka_api.error_codes import NONE, code_of, text_of
from millrace_broker.kafka_api.share_coordinators import ask
from millrace_broker.kafka_api.topics import read_id
from millrace_broker.runtime.turns import Turns

_WITH_LAG: Final = 1
_UNKNOWN: Final = -1


async def handle(message: DescribeShareGroupOffsetsRequest, request: KafkaRequest) -> DescribeShareGroupOffsetsResponse:
    """Look up the offsets, each group separately."""
    described, turns = [], Turns()
    for group in message.groups:
        await turns.next()
        try:
            described.append(await _described(group, request))
        except Exception as error:  # noqa: BLE001 - the group's error; unexpected errors are logged
            known = known_error(error)
            described.append(_failed(group, code_of(known), known.message))
    return DescribeShareGroupOffsetsResponse(throttle_time_ms=0, groups=tuple(described))


async def _described(
    group: DescribeShareGroupOffsetsRequestGroup, request: KafkaRequest
) -> DescribeShareGroupOffsetsResponseGroup:
    wanted = pb.DescribeShareGroupOffsetsRequest()
    asked = wanted.groups.add(
        group_id=group.group_id, all_topics=group.topics is None, with_lag=request.version >= _WITH_LAG
    )
    for topic in group.topics or ():
        asked.topics.add(name=topic.topic_name, partitions=topic.partitions)
    answer: pb.DescribeShareGroupOffsetsResponse = await ask(
        request, group.group_id, "DescribeShareGroupOffsets", wanted
    )
    (found,) = answer.groups
    if found.error.code == GroupIdNotFoundError.code:  # Kafka answers as if the group had not read anything
        found = pb.DescribeShareGroupOffsetsResponse.Group(group_id=group.group_id, topics=map(_unread, asked.topics))
    check_item(found.error)
    return DescribeShareGroupOffsetsResponseGroup(
        group_id=group.group_id,
        error_code=NONE,
        topics=tuple(
            DescribeShareGroupOffsetsResponseTopic(
                topic_name=topic.name,
                topic_id=read_id(topic.topic_id),
                partitions=tuple(
                    DescribeShareGroupOffsetsResponsePartition(
                        partition_index=each.partition,
                        start_offset=each.start_offset,
                        leader_epoch=0,
                        lag=each.lag if each.HasField("lag") else _UNKNOWN,
                        error_code=code_of(each.error),
                        error_message=text_of(each.error),
                    )
                    for each in topic.partitions
                ),
            )
            for topic in found.topics
        ),
    )


def _unread(asked: pb.TopicPartitions) -> pb.DescribeShareGroupOffsetsResponse.TopicOffsets:
    offset = pb.DescribeShareGroupOffsetsResponse.PartitionOffset
    partitions = [offset(partition=number, start_offset=_UNKNOWN) for number in asked.partitions]
    return pb.DescribeShareGroupOffsetsResponse.TopicOffsets(name=asked.name, partitions=partitions)


def _failed(
    group: DescribeShareGroupOffsetsRequestGroup, error_code: int, text: str | None
) -> DescribeShareGroupOffsetsResponseGroup:
    return DescribeShareGroupOffsetsResponseGroup(
        group_id=group.group_id, topics=(), error_code=error_code, error_message=text
    )


def refuse(
    message: DescribeShareGroupOffsetsRequest, version: int, error_code: int
) -> DescribeShareGroupOffsetsResponse:
    """Answer each group with the error."""
    failed = tuple(_failed(each, error_code, None) for each in message.groups)
    return DescribeShareGroupOffsetsResponse(throttle_time_ms=0, groups=failed)
