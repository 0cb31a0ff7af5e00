"""Kafka's AlterReplicaLogDirs call (KIP-113).

The call moves partitions of this broker to other log directories of the broker.
"""

from __future__ import annotations

from pathlib import Path

from millrace.errors import MillraceError
from millrace.kafka_protocol.calls.alter_replica_log_dirs import (
    AlterReplicaLogDirPartitionResult,
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirsResponse,
    AlterReplicaLogDirTopicResult,
)
from millrace_broker.api.common.access_rules import check_request
from millrace_broker.kafka_api.call import KafkaRequest
from millrace_broker.kafka_api.error_codes import NONE, code_of
from millrace_broker.log import LogManager


async def handle(message: AlterReplicaLogDirsRequest, request: KafkaRequest) -> AlterReplicaLogDirsResponse:
    """Begin the moves, each partition separately. DescribeLogDirs reports their progress."""
    check_request("AlterReplicaLogDirs", request.broker, message, request.context)
    return await request.broker.executors.run_io(_begin_all, message, request.broker.logs)


def _begin_all(message: AlterReplicaLogDirsRequest, logs: LogManager) -> AlterReplicaLogDirsResponse:
    codes: dict[str, dict[int, int]] = {}
    for directory in message.dirs:
        for topic in directory.topics:
            for partition in topic.partitions:
                codes.setdefault(topic.name, {})[partition] = _begin(logs, topic.name, partition, Path(directory.path))
    return _response(codes)


def _begin(logs: LogManager, topic: str, partition: int, target: Path) -> int:
    try:
        logs.moves.request((topic, partition), target)
    except MillraceError as error:
        return code_of(error)
    return NONE


def _response(codes: dict[str, dict[int, int]]) -> AlterReplicaLogDirsResponse:
    return AlterReplicaLogDirsResponse(
        throttle_time_ms=0,
        results=tuple(
            AlterReplicaLogDirTopicResult(
                topic_name=topic,
                partitions=tuple(
                    AlterReplicaLogDirPartitionResult(partition_index=number, error_code=code)
                    for number, code in partitions.items()
                ),
            )
            for topic, partitions in codes.items()
        ),
    )


def refuse(message: AlterReplicaLogDirsRequest, version: int, error_code: int) -> AlterReplicaLogDirsResponse:
    """Answer each partition with the error."""
    return _response(
        {
            topic.name: dict.fromkeys(topic.partitions, error_code)
            for directory in message.dirs
            for topic in directory.topics
        }
    )
