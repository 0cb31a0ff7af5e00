"""Handler of OffsetFetch, which returns committed offsets, each group separately.

A coordinator that has been replaced, and does not know it, answers with an error. In Kafka it answers with the offsets
that it knows. A program that reads, processes and writes in transactions would then process records again.
"""

from __future__ import annotations

from typing import Final

from millrace.errors import UnstableOffsetCommitError
from millrace.partitions import numbers_by_topic
from millrace.protocol import millrace_pb2 as pb
from millrace_broker.api.common.access_rules import authorized
from millrace_broker.api.common.errors import error_message
from millrace_broker.api.common.request_context import RequestContext
from millrace_broker.broker import Broker
from millrace_broker.groups import GroupEntry
from millrace_broker.purgatory import PartitionKey
from millrace_broker.runtime.turns import Turns

_NONE: Final = -1


@authorized("OffsetFetch")
async def handle(broker: Broker, request: pb.OffsetFetchRequest, context: RequestContext) -> pb.OffsetFetchResponse:
    """Look up the offsets. A group that does not exist has committed none."""
    response, turns = pb.OffsetFetchResponse(), Turns()
    for wanted in request.groups:
        await turns.next()  # not within a group, whose offsets belong together
        result = response.groups.add(group_id=wanted.group_id)
        try:
            shard = await broker.groups.shard_to_read(wanted.group_id)
            entry = shard.entries.get(wanted.group_id)
            topics = [(topic.name, tuple(topic.partitions)) for topic in wanted.topics]  # a name may come twice
            if wanted.all_topics:
                topics = [] if entry is None else list(numbers_by_topic(sorted(entry.offsets.committed)).items())
            for topic, partitions in topics:
                topic_offsets = result.topics.add(name=topic)
                for partition in partitions:
                    _look_up(topic_offsets.partitions.add(), entry, (topic, partition), request.require_stable)
        except Exception as error:  # noqa: BLE001 - the group's error; unexpected errors are logged
            result.error.CopyFrom(error_message(error))
    return response


def _look_up(
    result: pb.OffsetFetchResponse.PartitionOffset,
    entry: GroupEntry | None,
    partition: PartitionKey,
    require_stable: bool,
) -> None:
    committed = result.committed
    committed.partition, committed.offset, committed.leader_epoch = partition[1], _NONE, _NONE
    result.commit_timestamp_ms = _NONE
    if entry is None:
        return
    if require_stable and entry.offsets.is_unstable(partition):
        topic, number = partition
        error = UnstableOffsetCommitError(
            f"offsets of {topic}-{number} are about to be committed, or are pending in a transaction: try again"
        )
        result.error.CopyFrom(error_message(error))
        return
    commit = entry.offsets.get(partition)
    if commit is not None:
        committed.offset, committed.leader_epoch = commit.offset, commit.leader_epoch
        committed.metadata = commit.metadata
        result.commit_timestamp_ms = commit.commit_timestamp_ms
