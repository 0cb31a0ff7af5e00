"""Group operations of ``Admin``: descriptions, offsets, members and lag."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Final

from millrace.clients.grouped_by_topic import topic_commits, topic_partitions
from millrace.clients.groups.lag import Committed, group_lag
from millrace.clients.groups.model import GroupDescription, GroupListing, GroupMemberDescription, PartitionLag
from millrace.clients.groups.share_operations import ShareGroupOperations
from millrace.clients.log_operations import LogOperations
from millrace.clients.membership.commits import fetch_committed, fetch_entries
from millrace.clients.membership.coordinator import Answer, Asked, Coordinator, check_group_id, check_topic_errors
from millrace.clients.membership.protocol import decode_assignment
from millrace.clients.metadata import broker_address
from millrace.clients.model import OffsetAndMetadata, TopicPartition
from millrace.clients.request_numbers import numbers_checked
from millrace.clients.schema_cache import SchemaCache
from millrace.consumer_protocol import read_subscription
from millrace.errors import (
    GroupIdNotFoundError,
    InvalidRecordError,
    MillraceError,
    UnsupportedVersionError,
    UsageError,
    error_of,
)
from millrace.protocol import millrace_pb2 as pb
from millrace.protocol.item_errors import check_item

if TYPE_CHECKING:
    import grpc

    from millrace.protocol.millrace_pb2_grpc import BrokerStub


_NOBODY: Final = GroupDescription(
    group_id="",
    state="Empty",
    type="classic",
    protocol_type="",
    assignor="",
    generation_id=-1,
    members=(),
    coordinator="",
)
"""Placeholder group for offsets without a group."""


class GroupOperations(ShareGroupOperations, LogOperations):
    """Operations of ``Admin`` for groups."""

    def list_groups(self, *, states: Iterable[str] = (), types: Iterable[str] = ()) -> list[GroupListing]:
        """List the cluster's groups by name, all or with these states (Stable, Empty, ...) and types (classic,
        share).
        """
        request = pb.ListGroupsRequest(states=list(states), types=list(types))
        found: dict[str, GroupListing] = {}
        for broker in self._metadata.cluster().brokers:
            response = self._connections.call(
                lambda stub: stub.ListGroups, request, address=broker_address(broker.host, broker.port)
            )
            for group in response.groups:
                found[group.group_id] = GroupListing(
                    group_id=group.group_id,
                    protocol_type=group.protocol_type,
                    state=group.state,
                    type=group.type,
                )
        return [found[group_id] for group_id in sorted(found)]

    def describe_group(self, group_id: str) -> GroupDescription:
        """Describe a group and its members. Raises ``GroupIdNotFoundError``."""
        request = pb.DescribeGroupsRequest(group_ids=[group_id])
        response = self._of_either_kind(
            group_id, lambda stub: stub.DescribeGroups, request, lambda answer: _check_groups(answer.groups)
        )
        group = response.groups[0]
        return GroupDescription(
            group_id=group.group_id,
            state=group.state,
            type=group.type,
            protocol_type=group.protocol_type,
            assignor=group.protocol,
            generation_id=group.generation_id,
            members=tuple(_member(member) for member in group.members),
            coordinator=f"{group.coordinator.host}:{group.coordinator.port} ({group.coordinator.node_id})",
        )

    def delete_groups(self, group_ids: Iterable[str]) -> None:
        """Delete groups with their offsets; raises the first error after trying all of them.

        Raises ``NonEmptyGroupError`` for a group with members, ``GroupIdNotFoundError``.
        """
        errors = []
        for group_id in group_ids:
            request = pb.DeleteGroupsRequest(group_ids=[group_id])
            try:
                self._of_either_kind(group_id, lambda stub: stub.DeleteGroups, request, _check_deleted_groups)
            except MillraceError as error:
                errors.append(error_of(error.code, f"{group_id}: {error.message}"))
        if errors:
            raise errors[0]

    @numbers_checked()
    def list_group_offsets(
        self, group_id: str, partitions: Iterable[TopicPartition] | None = None
    ) -> dict[TopicPartition, OffsetAndMetadata]:
        """Return a group's committed offsets, of some partitions or of all; empty for an unknown group."""
        wanted = None if partitions is None else (TopicPartition(*each) for each in partitions)
        return fetch_committed(self._coordinator(group_id), wanted)

    @numbers_checked()
    def alter_group_offsets(self, group_id: str, offsets: Mapping[TopicPartition, OffsetAndMetadata | int]) -> None:
        """Set a group's offsets; the group must have no members.

        Raises ``UnknownMemberError`` if it has members, ``UnknownTopicOrPartitionError``,
        ``OffsetMetadataTooLargeError``.
        """
        places = {
            TopicPartition(*key): OffsetAndMetadata(offset=place) if isinstance(place, int) else place
            for key, place in offsets.items()
        }
        for partition, place in places.items():
            if place.offset < 0:
                raise UsageError(f"offset {place.offset} of {partition}: offsets start at 0")
        request = pb.OffsetCommitRequest(group_id=group_id, generation_id=-1, topics=topic_commits(places))
        self._coordinator(group_id).call(
            lambda stub: stub.OffsetCommit, request, check=lambda answer: check_topic_errors(answer.topics)
        )

    @numbers_checked()
    def delete_group_offsets(self, group_id: str, partitions: Iterable[TopicPartition]) -> None:
        """Delete a group's offsets of these partitions.

        Raises ``GroupSubscribedToTopicError`` for a topic that its members read, ``GroupIdNotFoundError``.
        """
        wanted = topic_partitions(TopicPartition(*partition) for partition in partitions)
        request = pb.OffsetDeleteRequest(group_id=group_id, topics=wanted)
        self._coordinator(group_id).call(
            lambda stub: stub.OffsetDelete, request, check=lambda answer: check_topic_errors(answer.topics)
        )

    def remove_members(self, group_id: str, group_instance_ids: Iterable[str] | None = None) -> None:
        """Remove static members from a group by their instance ids, or (``None``) all members.

        Raises the first error after trying all of them, for example ``UnknownMemberError``.
        """
        if group_instance_ids is None:
            members = [
                pb.LeaveGroupRequest.Member(member_id=member.member_id, group_instance_id=member.group_instance_id)
                for member in self.describe_group(group_id).members
            ]
        else:
            members = [pb.LeaveGroupRequest.Member(group_instance_id=instance) for instance in group_instance_ids]
        if not members:
            return
        request = pb.LeaveGroupRequest(group_id=group_id, members=members)
        response = self._coordinator(group_id).call(lambda stub: stub.LeaveGroup, request)
        for result in response.results:
            check_item(result.error, result.group_instance_id or result.member_id)

    def group_lag(self, group_id: str, *, measure: bool = True) -> list[PartitionLag]:
        """Return the lag of a group by partition. Raises ``GroupIdNotFoundError``.

        Works for share groups, and for any group that commits offsets: consumers, Spark queries, ``commit`` without
        membership. ``measure=False`` counts only records, which is cheaper.
        """
        group = self.describe_group(group_id)
        if group.is_shared:
            committed = {
                partition: Committed(place.start_offset, None, place.complete_count)
                for partition, place in self.list_share_group_offsets(group_id).items()
            }
        else:
            committed = {
                partition: Committed(entry.committed.offset, entry.commit_timestamp_ms)
                for partition, entry in fetch_entries(self._coordinator(group_id), None).items()
            }
        return group_lag(self, group, committed, SchemaCache(self._connections).schema_of, measure=measure)

    def lag_of(self, offsets: Mapping[TopicPartition, int], *, measure: bool = True) -> list[PartitionLag]:
        """Return the lag of offsets like ``group_lag``, without a group that has committed them."""
        committed = {TopicPartition(*partition): Committed(offset, None) for partition, offset in offsets.items()}
        return group_lag(self, _NOBODY, committed, SchemaCache(self._connections).schema_of, measure=measure)

    def _of_either_kind(
        self,
        group_id: str,
        method: Callable[[BrokerStub], grpc.UnaryUnaryMultiCallable[Asked, Answer]],
        request: Asked,
        check: Callable[[Answer], None],
    ) -> Answer:
        """Call the group's coordinator, and if it does not know the id, the share group's coordinator."""
        try:
            return self._coordinator(group_id).call(method, request, check=check)
        except GroupIdNotFoundError:
            return self._share_coordinator(group_id).call(method, request, check=check)

    def _coordinator(self, group_id: str) -> Coordinator:
        check_group_id(group_id)
        return Coordinator(self._connections, group_id)


def _member(member: pb.DescribeGroupsResponse.Member) -> GroupMemberDescription:
    return GroupMemberDescription(
        member_id=member.member_id,
        group_instance_id=member.group_instance_id,
        client_id=member.client_id,
        host=member.client_host,
        topics=_topics(member.metadata),
        partitions=tuple(sorted(_assigned(member.assignment))),
    )


def _topics(metadata: bytes) -> tuple[str, ...]:
    """Return a member's subscription; empty for protocols other than the consumer protocol."""
    try:
        return read_subscription(metadata)[1].topics if metadata else ()
    except (InvalidRecordError, UnsupportedVersionError):
        return ()


def _assigned(assignment: bytes) -> frozenset[TopicPartition]:
    try:
        return decode_assignment(assignment)
    except (InvalidRecordError, UnsupportedVersionError):
        return frozenset()


def _check_deleted_groups(answer: pb.DeleteGroupsResponse) -> None:
    for result in answer.results:
        check_item(result.error)


def _check_groups(groups: Iterable[pb.DescribeGroupsResponse.Group]) -> None:
    for group in groups:
        check_item(group.error)
