"""Kafka's ShareGroupHeartbeat call (KIP-932).

Members join, stay in and leave a share group with it, and get their assignments.
"""

from __future__ import annotations

from collections.abc import Mapping
from uuid import UUID

from millrace.errors import InvalidRequestError, MillraceError
from millrace.kafka_protocol.calls.share_group_heartbeat import (
    Assignment,
    ShareGroupHeartbeatRequest,
    ShareGroupHeartbeatResponse,
    TopicPartitions,
)
from millrace.protocol import millrace_pb2 as pb
from millrace_broker.kafka_api.call import KafkaRequest
from millrace_broker.kafka_api.error_codes import code_of
from millrace_broker.kafka_api.share_acknowledgements import check_member_id
from millrace_broker.kafka_api.share_coordinators import ask
from millrace_broker.metadata import TopicInfo
from millrace_broker.share_groups.members import JOIN_EPOCH


async def handle(message: ShareGroupHeartbeatRequest, request: KafkaRequest) -> ShareGroupHeartbeatResponse:
    """Record the heartbeat, and answer with the assignment if the member does not have it."""
    topics = message.subscribed_topic_names
    try:
        _check(message)
        wanted = pb.ShareGroupHeartbeatRequest(
            group_id=message.group_id,
            member_id=message.member_id,
            member_epoch=message.member_epoch,
            rack_id=message.rack_id or "",
            subscribed_topics=topics or (),
            has_subscription=topics is not None,
            client_id=request.context.client_id,
            client_host=request.context.client_host,
        )
        answer: pb.ShareGroupHeartbeatResponse = await ask(request, message.group_id, "ShareGroupHeartbeat", wanted)
    except MillraceError as error:
        return ShareGroupHeartbeatResponse(
            throttle_time_ms=0,
            error_code=code_of(error),
            error_message=error.message,
            member_epoch=0,
            heartbeat_interval_ms=0,
        )
    return ShareGroupHeartbeatResponse(
        throttle_time_ms=0,
        error_code=0,
        member_id=message.member_id,
        member_epoch=answer.member_epoch,
        heartbeat_interval_ms=answer.heartbeat_interval_ms,
        assignment=assignment_of(answer, request.broker.catalog.topics) if answer.has_assignment else None,
    )


def _check(message: ShareGroupHeartbeatRequest) -> None:
    """Raise ``InvalidRequestError`` for a heartbeat that Kafka refuses."""
    check_member_id(message.member_id)
    if not message.group_id:
        raise InvalidRequestError("the heartbeat has no group id: set group.id")
    if message.rack_id == "":
        raise InvalidRequestError("the heartbeat has an empty rack id: leave it out, or set client.rack")
    if message.member_epoch == JOIN_EPOCH and not message.subscribed_topic_names:
        raise InvalidRequestError("a heartbeat with epoch 0 has no subscription: send the topics to join")


def assignment_of(answer: pb.ShareGroupHeartbeatResponse, known: Mapping[str, TopicInfo]) -> Assignment:
    """Return the assignment with the coordinator's ids of topics. A coordinator of an older version sends none.

    ``known`` are this broker's topics. A topic may not be among them yet, or an earlier one of the same name.
    """
    return Assignment(
        topic_partitions=tuple(
            TopicPartitions(
                topic_id=UUID(bytes=each.topic_id) if each.topic_id else known[each.name].topic_id,
                partitions=tuple(each.partitions),
            )
            for each in answer.assignment
            if each.topic_id or each.name in known
        )
    )


def refuse(message: ShareGroupHeartbeatRequest, version: int, error_code: int) -> ShareGroupHeartbeatResponse:
    """Answer with the error."""
    return ShareGroupHeartbeatResponse(
        throttle_time_ms=0, error_code=error_code, member_epoch=0, heartbeat_interval_ms=0
    )
