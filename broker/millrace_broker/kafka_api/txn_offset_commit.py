"""Kafka's TxnOffsetCommit call.

The call commits offsets of a group, which take effect with a transaction.
"""

from __future__ import annotations

from typing import Final

from millrace.errors import (
    IllegalGenerationError,
    StaleMemberEpochError,
)
from millrace.kafka_protocol.calls.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitResponse,
    TxnOffsetCommitResponsePartition,
    TxnOffsetCommitResponseTopic,
)
from millrace.protocol import millrace_pb2 as pb
from millrace_broker.api.txn_offset_commit import handle as commit
from millrace_broker.kafka_api.call import KafkaRequest
from millrace_broker.kafka_api.committed_offsets import committed_offsets
from millrace_broker.kafka_api.error_codes import code_for, code_of

_WITH_IMPLICIT_OFFSETS: Final = 5
"""First version of producers that do not add the offsets to a transaction themselves (KIP-890, part 2)."""

_WITH_ABORTABLE: Final = 4
"""First version that has the error TRANSACTION_ABORTABLE."""


async def handle(message: TxnOffsetCommitRequest, request: KafkaRequest) -> TxnOffsetCommitResponse:
    """Commit the offsets within the transaction."""
    wanted = pb.TxnOffsetCommitRequest(
        transactional_id=message.transactional_id,
        group_id=message.group_id,
        producer_id=message.producer_id,
        producer_epoch=message.producer_epoch,
        generation_id=message.generation_id,
        member_id=message.member_id,
        group_instance_id=message.group_instance_id or "",
        adds_offsets=request.version >= _WITH_IMPLICIT_OFFSETS,
    )
    for topic in message.topics:
        wanted.topics.add(name=topic.name, partitions=committed_offsets(topic.partitions))
    answer = await commit(request.broker, wanted, request.context)
    return TxnOffsetCommitResponse(
        throttle_time_ms=0,
        topics=tuple(
            TxnOffsetCommitResponseTopic(
                name=topic.name,
                partitions=tuple(
                    TxnOffsetCommitResponsePartition(partition_index=each.partition, error_code=code_of(each.error))
                    for each in topic.partitions
                ),
            )
            for topic in answer.topics
        ),
    )


def refuse(message: TxnOffsetCommitRequest, version: int, error_code: int) -> TxnOffsetCommitResponse:
    """Answer each partition with the error.

    As in Kafka, no version has PRODUCER_FENCED or STALE_MEMBER_EPOCH. Producers fail at the latter, and abort at the
    code of an old generation.
    """
    code = code_for(error_code, knows_fencing=False, knows_abortable=version >= _WITH_ABORTABLE)
    code = IllegalGenerationError.code if code == StaleMemberEpochError.code else code
    return TxnOffsetCommitResponse(
        throttle_time_ms=0,
        topics=tuple(
            TxnOffsetCommitResponseTopic(
                name=topic.name,
                partitions=tuple(
                    TxnOffsetCommitResponsePartition(partition_index=each.partition_index, error_code=code)
                    for each in topic.partitions
                ),
            )
            for topic in message.topics
        ),
    )
