"""Kafka's DescribeLogDirs call (KIP-113, KIP-827).

The call describes the log directories of this broker, with the sizes of partitions.
"""

from __future__ import annotations

import shutil
from collections.abc import Container, Iterable
from pathlib import Path

from millrace.errors import MillraceError, StorageError
from millrace.kafka_protocol.calls.describe_log_dirs import (
    DescribeLogDirsPartition,
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
    DescribeLogDirsResult,
    DescribeLogDirsTopic,
)
from millrace_broker.api.common.access_rules import check_request
from millrace_broker.kafka_api.call import KafkaRequest
from millrace_broker.kafka_api.error_codes import code_of
from millrace_broker.log import FutureReplica, LogManager, PartitionKey


async def handle(message: DescribeLogDirsRequest, request: KafkaRequest) -> DescribeLogDirsResponse:
    """Describe all directories, each with all partitions or the named ones."""
    check_request("DescribeLogDirs", request.broker, message, request.context)
    wanted = None
    if message.topics is not None:
        wanted = {(topic.topic, number) for topic in message.topics for number in topic.partitions}
    logs = request.broker.logs
    found, usages = await request.broker.executors.run_io(_look, logs, wanted)  # it waits for locks and the disks
    return DescribeLogDirsResponse(
        throttle_time_ms=0,
        results=(
            *(
                _failed(path, usage) if isinstance(usage, StorageError) else _directory(path, found[path], usage)
                for path, usage in usages.items()
            ),
            *(_failed(path, error) for path, error in logs.failed_directories().items()),
        ),
    )


def _look(
    logs: LogManager, wanted: Container[PartitionKey] | None
) -> tuple[dict[Path, list[tuple[str, DescribeLogDirsPartition]]], dict[Path, tuple[int, int] | StorageError]]:
    """Return the partitions of each log directory, and the usages of the volumes."""
    found = {
        path: [
            *(_partition(key, log.size_bytes) for key, log in present.items() if wanted is None or key in wanted),
            *(
                _future(key, each)
                for key, each in logs.moves.in_progress(path).items()
                if wanted is None or key in wanted
            ),
        ]
        for path, present in logs.by_directory().items()
    }
    return found, _usages(found)


def _usages(paths: Iterable[Path]) -> dict[Path, tuple[int, int] | StorageError]:
    """Return the total and the free bytes of the volumes, or the error of a directory that is gone."""
    found: dict[Path, tuple[int, int] | StorageError] = {}
    for path in paths:
        try:
            usage = shutil.disk_usage(path)
        except OSError as error:
            found[path] = StorageError(f"the log directory {path} cannot be read: {error}")
        else:
            found[path] = (usage.total, usage.free)
    return found


def _partition(key: PartitionKey, size_bytes: int) -> tuple[str, DescribeLogDirsPartition]:
    topic, number = key
    return topic, DescribeLogDirsPartition(
        partition_index=number, partition_size=size_bytes, offset_lag=0, is_future_key=False
    )


def _future(key: PartitionKey, copy: FutureReplica) -> tuple[str, DescribeLogDirsPartition]:
    topic, number = key
    return topic, DescribeLogDirsPartition(
        partition_index=number, partition_size=copy.size_bytes, offset_lag=copy.offset_lag, is_future_key=True
    )


def _directory(
    path: Path, found: Iterable[tuple[str, DescribeLogDirsPartition]], usage: tuple[int, int]
) -> DescribeLogDirsResult:
    topics: dict[str, list[DescribeLogDirsPartition]] = {}
    for topic, partition in sorted(found, key=lambda each: (each[0], each[1].partition_index)):
        topics.setdefault(topic, []).append(partition)
    return DescribeLogDirsResult(
        error_code=0,
        log_dir=str(path),
        topics=tuple(
            DescribeLogDirsTopic(name=name, partitions=tuple(partitions)) for name, partitions in topics.items()
        ),
        total_bytes=usage[0],
        usable_bytes=usage[1],
    )


def _failed(path: Path, error: MillraceError) -> DescribeLogDirsResult:
    return DescribeLogDirsResult(error_code=code_of(error), log_dir=str(path), topics=())


def refuse(message: DescribeLogDirsRequest, version: int, error_code: int) -> DescribeLogDirsResponse:
    """Answer with the error."""
    return DescribeLogDirsResponse(throttle_time_ms=0, error_code=error_code, results=())
