"""Kafka's OffsetCommit call, which commits offsets of a group."""

from __future__ import annotations

from typing import Final

from millrace.errors import MillraceError, StaleMemberEpochError, UnsupportedVersionError
from millrace.kafka_protocol.calls.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
    OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
)
from millrace.protocol import millrace_pb2 as pb
from millrace_broker.api.offset_commit import handle as commit
from millrace_broker.groups import WITH_MEMBER_EPOCHS
from millrace_broker.kafka_api.call import KafkaRequest
from millrace_broker.kafka_api.committed_offsets import committed_offsets
from millrace_broker.kafka_api.error_codes import code_of
from millrace_broker.kafka_api.topics import name_of

_WITH_TOPIC_IDS: Final = 10


async def handle(message: OffsetCommitRequest, request: KafkaRequest) -> OffsetCommitResponse:
    """Commit the offsets. The retention time of versions before 5 is not used."""
    wanted = pb.OffsetCommitRequest(
        group_id=message.group_id,
        generation_id=message.generation_id_or_member_epoch,
        member_id=message.member_id,
        group_instance_id=message.group_instance_id or "",
        kafka_version=request.version,
    )
    has_id = request.version >= _WITH_TOPIC_IDS
    unknown: dict[int, int] = {}
    for place, topic in enumerate(message.topics):
        try:
            name = name_of(request.broker.catalog, topic.name, topic.topic_id, has_id=has_id)
        except MillraceError as error:
            unknown[place] = code_of(error)
            continue
        wanted.topics.add(name=name).partitions.extend(committed_offsets(topic.partitions))
    results = iter((await commit(request.broker, wanted, request.context)).topics)
    return OffsetCommitResponse(
        topics=tuple(
            _failed(topic, unknown[place]) if place in unknown else _committed(topic, next(results))
            for place, topic in enumerate(message.topics)
        )
    )


def _committed(topic: OffsetCommitRequestTopic, result: pb.TopicErrors) -> OffsetCommitResponseTopic:
    return OffsetCommitResponseTopic(
        name=topic.name,
        topic_id=topic.topic_id,
        partitions=tuple(
            OffsetCommitResponsePartition(partition_index=each.partition, error_code=code_of(each.error))
            for each in result.partitions
        ),
    )


def _failed(topic: OffsetCommitRequestTopic, error_code: int) -> OffsetCommitResponseTopic:
    return OffsetCommitResponseTopic(
        name=topic.name,
        topic_id=topic.topic_id,
        partitions=tuple(
            OffsetCommitResponsePartition(partition_index=each.partition_index, error_code=error_code)
            for each in topic.partitions
        ),
    )


def refuse(message: OffsetCommitRequest, version: int, error_code: int) -> OffsetCommitResponse:
    """Answer each partition with the error."""
    if error_code == StaleMemberEpochError.code and version < WITH_MEMBER_EPOCHS:
        error_code = UnsupportedVersionError.code
    return OffsetCommitResponse(topics=tuple(_failed(topic, error_code) for topic in message.topics))
