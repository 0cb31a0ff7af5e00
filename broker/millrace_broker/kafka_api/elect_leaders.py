"""Kafka's ElectLeaders call, for preferred and unclean leader elections (KIP-460)."""

from __future__ import annotations

from typing import Final

from millrace.errors import InvalidRequestError
from millrace.kafka_protocol.calls.elect_leaders import (
    ElectLeadersRequest,
    ElectLeadersResponse,
    PartitionResult,
    ReplicaElectionResult,
)
from millrace.protocol import millrace_pb2 as pb
from millrace_broker.api.elect_leaders import handle as elect
from millrace_broker.kafka_api.call import KafkaRequest
from millrace_broker.kafka_api.error_codes import code_of, text_of

_WITH_ERROR: Final = 1
_TYPES: Final = {0: pb.PREFERRED, 1: pb.UNCLEAN}


async def handle(message: ElectLeadersRequest, request: KafkaRequest) -> ElectLeadersResponse:
    """Elect leaders of the partitions, or of all where one is needed. Raises ``InvalidRequestError``."""
    if message.election_type not in _TYPES:
        raise InvalidRequestError(f"election type {message.election_type}: expected 0 (preferred) or 1 (unclean)")
    wanted = pb.ElectLeadersRequest(
        election_type=_TYPES[message.election_type],
        topics=[
            pb.TopicPartitions(name=topic.topic, partitions=topic.partitions)
            for topic in message.topic_partitions or ()
        ],
        all_partitions=message.topic_partitions is None,
        timeout_ms=max(0, message.timeout_ms),
    )
    answer = await elect(request.broker, wanted, request.context)
    return ElectLeadersResponse(
        throttle_time_ms=0,
        replica_election_results=tuple(
            ReplicaElectionResult(
                topic=topic.name,
                partition_result=tuple(
                    PartitionResult(
                        partition_id=each.partition, error_code=code_of(each.error), error_message=text_of(each.error)
                    )
                    for each in topic.partitions
                ),
            )
            for topic in answer.topics
        ),
    )


def refuse(message: ElectLeadersRequest, version: int, error_code: int) -> ElectLeadersResponse:
    """Answer with the error; in version 0 each partition."""
    if version >= _WITH_ERROR:
        return ElectLeadersResponse(throttle_time_ms=0, error_code=error_code, replica_election_results=())
    return ElectLeadersResponse(
        throttle_time_ms=0,
        replica_election_results=tuple(
            ReplicaElectionResult(
                topic=topic.topic,
                partition_result=tuple(
                    PartitionResult(partition_id=number, error_code=error_code, error_message=None)
                    for number in topic.partitions
                ),
            )
            for topic in message.topic_partitions or ()
        ),
    )
