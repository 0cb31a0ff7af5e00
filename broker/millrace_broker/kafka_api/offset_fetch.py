"""Kafka's OffsetFetch call, which returns committed offsets of groups.

Before version 8 a request names one group.
"""

from __future__ import annotations

from typing import Final

from millrace.errors import MillraceError
from millrace.kafka_protocol.calls.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
    OffsetFetchResponse,
    OffsetFetchResponseGroup,
    OffsetFetchResponsePartition,
    OffsetFetchResponsePartitions,
    OffsetFetchResponseTopic,
    OffsetFetchResponseTopics,
)
from millrace.protocol import millrace_pb2 as pb
from millrace_broker.api.offset_fetch import handle as look_up
from millrace_broker.broker import Broker
from millrace_broker.kafka_api.call import KafkaRequest
from millrace_broker.kafka_api.error_codes import code_of
from millrace_broker.kafka_api.topics import id_of, name_of

_WITH_GROUPS: Final = 8
_WITH_GROUP_ERROR: Final = 2
_WITH_TOPIC_IDS: Final = 10
_NO_OFFSET: Final = -1


async def handle(message: OffsetFetchRequest, request: KafkaRequest) -> OffsetFetchResponse:
    """Look up the offsets, each group separately."""
    groups = message.groups if request.version >= _WITH_GROUPS else (_only_group(message),)
    wanted = pb.OffsetFetchRequest(require_stable=message.require_stable)
    has_id = request.version >= _WITH_TOPIC_IDS
    unknown = [_ask(request.broker, wanted, group, has_id=has_id) for group in groups]
    answer = await look_up(request.broker, wanted, request.context)
    found = tuple(
        [
            await _group(request.broker, group, result, topics)
            for group, result, topics in zip(groups, answer.groups, unknown, strict=True)
        ]
    )
    if request.version >= _WITH_GROUPS:
        return OffsetFetchResponse(groups=found)
    if found[0].error_code and request.version < _WITH_GROUP_ERROR:
        return refuse(message, request.version, found[0].error_code)
    return OffsetFetchResponse(topics=tuple(map(_single, found[0].topics)), error_code=found[0].error_code)


async def _refusal(broker: Broker, group: OffsetFetchRequestGroup) -> int:
    """Return the error code for a member of a consumer group that sends another epoch than its own, else 0."""
    if group.member_id is None and group.member_epoch < 0:
        return 0
    try:
        shard = await broker.groups.wait_for_shard(group.group_id, may_be_empty=True)
        shard.check_fetch(group.group_id, group.member_id, group.member_epoch)
    except MillraceError as error:
        return code_of(error)
    return 0


def _only_group(message: OffsetFetchRequest) -> OffsetFetchRequestGroup:
    topics = None
    if message.topics is not None:
        topics = tuple(
            OffsetFetchRequestTopics(name=each.name, partition_indexes=each.partition_indexes)
            for each in message.topics
        )
    return OffsetFetchRequestGroup(group_id=message.group_id, topics=topics)


def _ask(
    broker: Broker, wanted: pb.OffsetFetchRequest, group: OffsetFetchRequestGroup, *, has_id: bool
) -> list[OffsetFetchResponseTopics]:
    """Add a group to the request for its offsets. Return the answers for its unknown topics."""
    asked = wanted.groups.add(group_id=group.group_id, all_topics=group.topics is None)
    failed = []
    for topic in group.topics or ():
        try:
            name = name_of(broker.catalog, topic.name, topic.topic_id, has_id=has_id)
        except MillraceError as error:
            failed.append(_unknown(topic, code_of(error)))
            continue
        asked.topics.add(name=name, partitions=topic.partition_indexes)
    return failed


def _unknown(topic: OffsetFetchRequestTopics, error_code: int) -> OffsetFetchResponseTopics:
    partitions = tuple(_partition(number, _NO_OFFSET, -1, "", error_code) for number in topic.partition_indexes)
    return OffsetFetchResponseTopics(name=topic.name, topic_id=topic.topic_id, partitions=partitions)


def _partition(number: int, offset: int, epoch: int, metadata: str, error_code: int) -> OffsetFetchResponsePartitions:
    return OffsetFetchResponsePartitions(
        partition_index=number,
        committed_offset=offset,
        committed_leader_epoch=epoch,
        metadata=metadata,
        error_code=error_code,
    )


async def _group(
    broker: Broker,
    wanted: OffsetFetchRequestGroup,
    result: pb.OffsetFetchResponse.Group,
    unknown: list[OffsetFetchResponseTopics],
) -> OffsetFetchResponseGroup:
    """Return the answer for a group. A client without the right to the group learns nothing of its members."""
    error_code = code_of(result.error) or await _refusal(broker, wanted)
    if error_code:
        return OffsetFetchResponseGroup(group_id=wanted.group_id, error_code=error_code)
    topics = [
        OffsetFetchResponseTopics(
            name=topic.name,
            topic_id=id_of(broker.catalog, topic.name),
            partitions=tuple(
                _partition(
                    each.committed.partition,
                    each.committed.offset,
                    each.committed.leader_epoch,
                    each.committed.metadata,
                    code_of(each.error),
                )
                for each in topic.partitions
            ),
        )
        for topic in result.topics
    ]
    return OffsetFetchResponseGroup(group_id=result.group_id, topics=(*topics, *unknown), error_code=0)


def _single(topic: OffsetFetchResponseTopics) -> OffsetFetchResponseTopic:
    return OffsetFetchResponseTopic(
        name=topic.name,
        partitions=tuple(
            OffsetFetchResponsePartition(
                partition_index=each.partition_index,
                committed_offset=each.committed_offset,
                committed_leader_epoch=each.committed_leader_epoch,
                metadata=each.metadata,
                error_code=each.error_code,
            )
            for each in topic.partitions
        ),
    )


def refuse(message: OffsetFetchRequest, version: int, error_code: int) -> OffsetFetchResponse:
    """Answer each group with the error; in version 1 each partition."""
    if version >= _WITH_GROUPS:
        failed = tuple(
            OffsetFetchResponseGroup(group_id=each.group_id, error_code=error_code) for each in message.groups
        )
        return OffsetFetchResponse(groups=failed)
    if version >= _WITH_GROUP_ERROR:
        return OffsetFetchResponse(error_code=error_code)
    return OffsetFetchResponse(
        topics=tuple(_single(_unknown(each, error_code)) for each in _only_group(message).topics or ())
    )
