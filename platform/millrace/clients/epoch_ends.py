"""Lookup of leader epoch ends, which show truncation (KIP-320)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from millrace.clients.connections import Connections
from millrace.clients.leaders import LeaderCall, ask_leaders
from millrace.clients.metadata import MetadataCache
from millrace.clients.model import TopicPartition
from millrace.errors import MillraceError
from millrace.protocol import millrace_pb2 as pb
from millrace.protocol.item_errors import error_in


def epoch_ends(
    connections: Connections, metadata: MetadataCache, wanted: Mapping[TopicPartition, int]
) -> dict[TopicPartition, int | None]:
    """Ask the leader of each partition where a leader epoch ends; raises the first partition's error."""

    def request(partitions: Sequence[TopicPartition]) -> pb.OffsetForLeaderEpochRequest:
        topics: dict[str, pb.OffsetForLeaderEpochRequest.TopicEpochs] = {}
        for partition in partitions:
            topic = topics.setdefault(partition.topic, pb.OffsetForLeaderEpochRequest.TopicEpochs(name=partition.topic))
            topic.partitions.add(partition=partition.partition, current_leader_epoch=-1, leader_epoch=wanted[partition])
        return pb.OffsetForLeaderEpochRequest(replica_id=-1, topics=topics.values())

    call = LeaderCall(lambda stub: stub.OffsetForLeaderEpoch, request, lambda response, partitions: _ends(response))
    found: dict[TopicPartition, int | None] = {}
    for partition, answer in ask_leaders(connections, metadata, wanted, call).items():
        if isinstance(answer, MillraceError):
            raise answer
        found[partition] = answer
    return found


def _ends(response: pb.OffsetForLeaderEpochResponse) -> dict[TopicPartition, int | MillraceError | None]:
    found: dict[TopicPartition, int | MillraceError | None] = {}
    for topic in response.topics:
        for each in topic.partitions:
            error = error_in(each.error)
            if error is not None:
                found[TopicPartition(topic.name, each.partition)] = error
            else:
                known = each.end.leader_epoch >= 0
                found[TopicPartition(topic.name, each.partition)] = each.end.end_offset if known else None
    return found
