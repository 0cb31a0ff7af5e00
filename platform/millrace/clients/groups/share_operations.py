"""Offset operations of ``Admin`` for share groups."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from millrace.clients.connections import Connections
from millrace.clients.grouped_by_topic import topic_partitions
from millrace.clients.groups.model import SharePartitionOffsets
from millrace.clients.membership.coordinator import Coordinator, check_group_id, check_topic_errors
from millrace.clients.model import TopicPartition
from millrace.clients.request_numbers import numbers_checked
from millrace.errors import UsageError
from millrace.protocol import millrace_pb2 as pb
from millrace.protocol.item_errors import check_item


class ShareGroupOperations:
    """Operations of ``Admin`` for the offsets of share groups (KIP-932)."""

    _connections: Connections

    def list_share_group_offsets(
        self, group_id: str, partitions: Iterable[TopicPartition] | None = None
    ) -> dict[TopicPartition, SharePartitionOffsets]:
        """Return a share group's progress, in some partitions or in all; unread partitions are omitted.

        Raises ``GroupIdNotFoundError``.
        """
        wanted = None if partitions is None else topic_partitions(TopicPartition(*each) for each in partitions)
        group = pb.DescribeShareGroupOffsetsRequest.Group(
            group_id=group_id, topics=wanted or (), all_topics=wanted is None
        )
        response = self._share_coordinator(group_id).call(
            lambda stub: stub.DescribeShareGroupOffsets,
            pb.DescribeShareGroupOffsetsRequest(groups=[group]),
            check=_check_described,
        )
        return {
            TopicPartition(topic.name, each.partition): SharePartitionOffsets(
                start_offset=each.start_offset, complete_count=each.delivery_complete_count
            )
            for topic in response.groups[0].topics
            for each in topic.partitions
            if each.start_offset >= 0
        }

    @numbers_checked()
    def alter_share_group_offsets(self, group_id: str, offsets: Mapping[TopicPartition, int]) -> None:
        """Set the start offsets of a share group, whatever was delivered; it must have no members, and need not exist.

        Raises ``NonEmptyGroupError`` if it has members, ``UnknownTopicOrPartitionError``.
        """
        request = pb.AlterShareGroupOffsetsRequest(group_id=group_id)
        topics: dict[str, pb.AlterShareGroupOffsetsRequest.TopicOffsets] = {}
        for (name, number), offset in offsets.items():
            if offset < 0:
                raise UsageError(f"offset {offset} of {name}-{number}: offsets start at 0")
            topic = topics.get(name) or topics.setdefault(name, request.topics.add(name=name))
            topic.partitions.add(partition=number, start_offset=offset)
        self._share_coordinator(group_id).call(
            lambda stub: stub.AlterShareGroupOffsets, request, check=lambda answer: check_topic_errors(answer.topics)
        )

    def delete_share_group_offsets(self, group_id: str, topics: Iterable[str]) -> None:
        """Delete a share group's state of topics; it starts there again, by ``share.auto.offset.reset``.

        Raises ``NonEmptyGroupError`` if it has members, ``GroupIdNotFoundError``, ``UnknownTopicOrPartitionError``.
        """
        request = pb.DeleteShareGroupOffsetsRequest(group_id=group_id, topics=list(topics))
        self._share_coordinator(group_id).call(lambda stub: stub.DeleteShareGroupOffsets, request, check=_check_deleted)

    def _share_coordinator(self, group_id: str) -> Coordinator:
        check_group_id(group_id)
        return Coordinator(self._connections, group_id, pb.SHARE)


def _check_described(answer: pb.DescribeShareGroupOffsetsResponse) -> None:
    for group in answer.groups:
        check_item(group.error)
        check_topic_errors(
            pb.TopicErrors(
                name=topic.name,
                partitions=[pb.PartitionError(partition=each.partition, error=each.error) for each in topic.partitions],
            )
            for topic in group.topics
        )


def _check_deleted(answer: pb.DeleteShareGroupOffsetsResponse) -> None:
    for topic in answer.topics:
        check_item(topic.error, topic.name)
