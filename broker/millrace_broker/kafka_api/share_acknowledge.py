"""Kafka's ShareAcknowledge call (KIP-932).

The call acknowledges acquired records without another fetch.
"""

from __future__ import annotations

from millrace.errors import InvalidShareSessionEpochError
from millrace.kafka_protocol.calls.share_acknowledge import (
    LeaderIdAndEpoch,
    PartitionData,
    ShareAcknowledgeRequest,
    ShareAcknowledgeResponse,
    ShareAcknowledgeTopicResponse,
)
from millrace_broker.kafka_api.call import KafkaRequest
from millrace_broker.kafka_api.share_acknowledgements import Outcome, acknowledge, check_may_read, key_of
from millrace_broker.kafka_api.share_sessions import FINAL_EPOCH, SharedPartition
from millrace_broker.replication.core.fetch_session import FIRST_EPOCH


async def handle(message: ShareAcknowledgeRequest, request: KafkaRequest) -> ShareAcknowledgeResponse:
    """Acknowledge the records, each partition separately. The last request of a session releases all others.

    Raises ``InvalidRequestError``, ``ShareSessionNotFoundError``, ``InvalidShareSessionEpochError``.
    """
    key = key_of(message.group_id, message.member_id)
    check_may_read(request, key.group_id)
    sessions, epoch = request.state.share_sessions, message.share_session_epoch
    if epoch == FIRST_EPOCH:
        raise InvalidShareSessionEpochError("ShareAcknowledge begins no share session: begin it with ShareFetch")
    is_last = epoch == FINAL_EPOCH
    session = sessions.find(key) if is_last else sessions.proceed(key, epoch)
    outcomes = await acknowledge(
        request,
        key,
        {
            SharedPartition(topic.topic_id, each.partition_index): each.acknowledgement_batches
            for topic in message.topics
            for each in topic.partitions
        },
        is_renewal=message.is_renew_ack,
        released=session.partitions if is_last else (),
    )
    if is_last:
        sessions.end(session)
    return ShareAcknowledgeResponse(
        throttle_time_ms=0,
        error_code=0,
        acquisition_lock_timeout_ms=max((each.lock_ms for each in outcomes.values()), default=0),
        responses=tuple(
            ShareAcknowledgeTopicResponse(
                topic_id=topic.topic_id,
                partitions=tuple(
                    _partition(each.partition_index, outcomes[SharedPartition(topic.topic_id, each.partition_index)])
                    for each in topic.partitions
                ),
            )
            for topic in message.topics
        ),
        node_endpoints=(),
    )


def _partition(number: int, outcome: Outcome) -> PartitionData:
    return PartitionData(
        partition_index=number,
        error_code=outcome.error_code,
        error_message=outcome.error_message,
        current_leader=LeaderIdAndEpoch(leader_id=-1, leader_epoch=-1),
    )


def refuse(message: ShareAcknowledgeRequest, version: int, error_code: int) -> ShareAcknowledgeResponse:
    """Answer with the error."""
    return ShareAcknowledgeResponse(throttle_time_ms=0, error_code=error_code, responses=(), node_endpoints=())
