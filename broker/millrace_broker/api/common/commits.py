"""Checks of committed offsets, shared by OffsetCommit and TxnOffsetCommit."""

from __future__ import annotations

from typing import Any

from millrace.errors import OffsetMetadataTooLargeError
from millrace.protocol import millrace_pb2 as pb
from millrace_broker.api.common.errors import error_message
from millrace_broker.broker import Broker
from millrace_broker.groups import CommittedOffset
from millrace_broker.purgatory import PartitionKey
from millrace_broker.runtime.turns import Turns


async def checked_commits(broker: Broker, topics: Any, results: Any) -> dict[PartitionKey, CommittedOffset]:
    """Return the offsets that can be committed.

    Add a result for each partition to ``results``, with its error if refused.
    """
    now_ms = broker.clock.now_ms()
    commits: dict[PartitionKey, CommittedOffset] = {}
    turns = Turns()
    for topic_commits in topics:
        topic_result = results.add(name=topic_commits.name)
        for wanted in topic_commits.partitions:
            await turns.next()
            result = topic_result.partitions.add(partition=wanted.partition)
            try:
                _check(broker, topic_commits.name, wanted)
            except Exception as error:  # noqa: BLE001 - the partition's error; unexpected errors are logged
                result.error.CopyFrom(error_message(error))
            else:
                commit = CommittedOffset(wanted.offset, wanted.leader_epoch, wanted.metadata, now_ms)
                commits[topic_commits.name, wanted.partition] = commit
    return commits


def _check(broker: Broker, name: str, wanted: pb.CommittedOffset) -> None:
    """Raise the error of a partition. A negative offset is committed, because KafkaJS asks for the end of a log so."""
    broker.partitions.topic(name).partition(wanted.partition)
    most = broker.config.offset_metadata_max_bytes
    if len(wanted.metadata) > most:
        raise OffsetMetadataTooLargeError(
            f"the metadata of {name}-{wanted.partition} has {len(wanted.metadata)} characters, "
            f"but offset.metadata.max.bytes allows {most}"
        )
