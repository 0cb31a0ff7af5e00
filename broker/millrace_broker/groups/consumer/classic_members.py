"""Classic members of consumer groups, and migration between the protocols (KIP-848).

A live classic group becomes a consumer group when the first member joins with the consumer protocol. It becomes a
classic group again when the last such member leaves. In between, members of both protocols share the target assignment.
The epoch of a classic member is its generation. A classic member reports its owned partitions with JoinGroup instead of
a heartbeat, and assigns no partitions itself. Source: Kafka 4.3's ``GroupMetadataManager``.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from millrace.coordinator_records import (
    AssignedPartitions,
    ConsumerProtocolAssignment,
    ConsumerProtocolSubscription,
    OwnedPartitions,
    read_assignment,
    read_subscription,
    write_versioned,
)
from millrace.errors import (
    GroupIdNotFoundError,
    InconsistentGroupProtocolError,
    InvalidRecordError,
    RebalanceInProgressError,
    UnknownMemberError,
    UnsupportedVersionError,
)
from millrace.partitions import numbers_by_topic
from millrace_broker.groups.consumer.consumer_group import ConsumerGroup, ConsumerSettings
from millrace_broker.groups.consumer.members import (
    NO_PARTITIONS,
    STATIC_LEAVE_EPOCH,
    ClassicMetadata,
    ConsumerMember,
    MemberState,
    Partitions,
)
from millrace_broker.groups.consumer.topics import ClusterTopics
from millrace_broker.groups.effects import StoredGroup, StoredMember
from millrace_broker.groups.members import MemberMetadata
from millrace_broker.groups.requests import (
    CONSUMER,
    NO_MEMBER,
    Identity,
    JoinAnswer,
    JoinRequest,
    Protocols,
    SyncAnswer,
    SyncRequest,
)

# --- JoinGroup, SyncGroup, Heartbeat -------------------------------------------------------------------------


def join(
    group: ConsumerGroup, request: JoinRequest, topics: ClusterTopics, settings: ConsumerSettings
) -> tuple[ConsumerGroup, JoinAnswer]:
    """Return the group after a JoinGroup request of a consumer, and the answer. Members with an id may be new.

    Raises ``InconsistentGroupProtocolError``, ``GroupMaxSizeReachedError``, ``FencedInstanceIdError``,
    ``UnknownMemberError``.
    """
    subscription = _check_protocols(group, request)
    group, before = _joining(group, request, settings)
    member = replace(
        before,
        rack_id=subscription.rack_id or before.rack_id,
        client_id=request.client_id,
        client_host=request.client_host,
        topics=frozenset(subscription.topics),
        regex="",
        rebalance_timeout_ms=request.rebalance_timeout_ms,
        server_assignor=None,
        classic=ClassicMetadata(session_timeout_ms=request.session_timeout_ms, protocols=request.protocols),
    )
    is_changed = member.member_id not in group.target or (before.topics, before.regex) != (member.topics, "")
    group = replace(group, members={**group.members, member.member_id: member})
    group = group.refreshed(topics, settings, is_changed=is_changed)
    group, after = group.reconciled(member, _ids(subscription.owned_partitions, topics))
    return group, JoinAnswer(
        generation_id=after.epoch,
        protocol_type=CONSUMER,
        protocol_name=request.protocols[0][0],
        leader=NO_MEMBER,
        member_id=after.member_id,
    )


def _check_protocols(group: ConsumerGroup, request: JoinRequest) -> ConsumerProtocolSubscription:
    """Return the subscription of a request whose assignors the other classic members have."""
    names = {name for name, _ in request.protocols}
    for member in group.members.values():
        if member.classic is not None and member.member_id != request.member_id:
            names &= {name for name, _ in member.classic.protocols}
    if request.protocol_type == CONSUMER and names:
        try:
            return read_subscription(request.protocols[0][1])[1]
        except (InvalidRecordError, UnsupportedVersionError) as error:
            raise InconsistentGroupProtocolError(
                f"the subscription of a member that joins group {group.group_id} cannot be read: {error.message}"
            ) from error
    raise InconsistentGroupProtocolError(
        f"group {group.group_id} is a consumer group, which a member with protocol type "
        f"{request.protocol_type or 'none'} and assignors {', '.join(name for name, _ in request.protocols) or 'none'} "
        "cannot join: give all members one common assignor, or group.protocol=consumer"
    )


def _joining(
    group: ConsumerGroup, request: JoinRequest, settings: ConsumerSettings
) -> tuple[ConsumerGroup, ConsumerMember]:
    member_id, instance_id = request.member_id, request.group_instance_id
    if instance_id is not None:
        found = group.static_member(instance_id)
        if found is not None and found.member_id != member_id:
            if member_id != NO_MEMBER:
                raise group.fenced_instance(instance_id)
            # As in classic groups, a new process takes the place of the earlier one, which is fenced.
            member = replace(found, member_id=request.new_member_id)
            if member.epoch == STATIC_LEAVE_EPOCH:
                member = replace(member, epoch=0, previous_epoch=0, state=MemberState.STABLE)
            return group.replaced(found, member), member
        if found is None and member_id != NO_MEMBER:
            raise UnknownMemberError(
                f"group {group.group_id} has no member with group.instance.id={instance_id}: join without a member id"
            )
    member_id = member_id or request.new_member_id
    if member_id not in group.members:
        group.check_size(settings)
        return group, ConsumerMember(member_id=member_id, instance_id=instance_id)
    return group, group.members[member_id]


def check_member(group: ConsumerGroup, identity: Identity) -> ConsumerMember:
    """Return the classic member of a request of its generation.

    Raises ``UnknownMemberError``, ``FencedInstanceIdError``, ``IllegalGenerationError``.
    """
    if identity.group_instance_id is not None:
        found = group.static_member(identity.group_instance_id)
        if found is not None and found.member_id != identity.member_id:
            raise group.fenced_instance(identity.group_instance_id)
    member = group.member(identity.member_id)
    if member.classic is None:
        raise UnknownMemberError(f"member {identity.member_id} of group {group.group_id} uses the consumer protocol")
    group.check_commit(identity, is_transactional=False)
    return member


def sync(group: ConsumerGroup, request: SyncRequest, topics: ClusterTopics) -> SyncAnswer:
    """Return the assignment of a classic member.

    Raises the errors of ``check_member``, ``InconsistentGroupProtocolError``, ``RebalanceInProgressError``.
    """
    member = check_member(group, request.identity)
    assert member.classic is not None, "check_member refuses other members"
    name, metadata = member.classic.protocols[0]
    if request.protocol_type not in ("", CONSUMER) or request.protocol_name not in ("", name):
        raise InconsistentGroupProtocolError(
            f"member {member.member_id} of group {group.group_id} has protocol type {CONSUMER} and assignor {name}, "
            f"not {request.protocol_type} and {request.protocol_name}: join again"
        )
    if group.epoch > member.epoch and member.state is not MemberState.UNREVOKED_PARTITIONS:
        raise must_rejoin(group)
    version = read_subscription(metadata)[0]
    return SyncAnswer(
        protocol_type=CONSUMER, protocol_name=name, assignment=assignment_bytes(member.assigned, topics, version)
    )


def needs_to_rejoin(group: ConsumerGroup, member: ConsumerMember) -> bool:
    """Return whether a classic member has to join again to continue its reconciliation."""
    if member.epoch < group.epoch or member.state is MemberState.UNREVOKED_PARTITIONS:
        return True
    missing = group.target.get(member.member_id, NO_PARTITIONS) - member.assigned
    return member.state is MemberState.UNRELEASED_PARTITIONS and any(
        group.is_free(partition, member.member_id) for partition in missing
    )


def must_rejoin(group: ConsumerGroup) -> RebalanceInProgressError:
    """Return the error that lets a classic member join again."""
    return RebalanceInProgressError(f"group {group.group_id} is rebalancing: join again")


# --- migration -----------------------------------------------------------------------------------------------


def upgraded(
    group_id: str, generation_id: int, members: Iterable[MemberMetadata], topics: ClusterTopics
) -> ConsumerGroup:
    """Return a classic group of consumers as a consumer group, with the assignments of its members as the target.

    Raises ``GroupIdNotFoundError`` for members whose assignment has data of the assignor, which would be lost. Data in
    a subscription is only about the past: sticky assignors write their last assignment there.
    """
    converted: dict[str, ConsumerMember] = {}
    taken: Partitions = NO_PARTITIONS
    for each in members:
        try:
            subscription = read_subscription(each.protocols[0][1])[1]
            assignment = read_assignment(each.assignment)[1] if each.assignment else None
        except (InvalidRecordError, UnsupportedVersionError) as error:
            raise GroupIdNotFoundError(
                f"classic group {group_id} cannot become a consumer group, because member {each.member_id} does not "
                f"use the consumer protocol: {error.message}"
            ) from error
        if assignment is not None and assignment.user_data:
            raise GroupIdNotFoundError(
                f"classic group {group_id} cannot become a consumer group, because the assignment of member "
                f"{each.member_id} has data of its assignor: set another partition.assignment.strategy first"
            )
        assigned = _ids(assignment.assigned_partitions if assignment is not None else (), topics) - taken
        taken |= assigned
        converted[each.member_id] = ConsumerMember(
            member_id=each.member_id,
            instance_id=each.group_instance_id,
            rack_id=subscription.rack_id,
            client_id=each.client_id,
            client_host=each.client_host,
            topics=frozenset(subscription.topics),
            rebalance_timeout_ms=each.rebalance_timeout_ms,
            classic=ClassicMetadata(session_timeout_ms=each.session_timeout_ms, protocols=each.protocols),
            epoch=generation_id,
            previous_epoch=generation_id,
            assigned=assigned,
        )
    return ConsumerGroup(
        group_id=group_id,
        epoch=generation_id,
        members=converted,
        target_epoch=generation_id,
        target={member_id: member.assigned for member_id, member in converted.items()},
    )


def is_classic(group: ConsumerGroup) -> bool:
    """Return whether the group has members, and all use the classic protocol."""
    return bool(group.members) and all(each.classic is not None for each in group.members.values())


def downgraded(
    group: ConsumerGroup, generation_id: int, topics: ClusterTopics
) -> tuple[StoredGroup, dict[str, Protocols]]:
    """Return a group of classic members only as a classic group, and the assignors of each member."""
    protocols: dict[str, Protocols] = {}
    stored: list[StoredMember] = []
    for member in group.members.values():
        assert member.classic is not None, f"{member.member_id} uses the consumer protocol"
        protocols[member.member_id] = member.classic.protocols
        metadata = member.classic.protocols[0][1]
        stored.append(
            StoredMember(
                member_id=member.member_id,
                group_instance_id=member.instance_id,
                client_id=member.client_id,
                client_host=member.client_host,
                session_timeout_ms=member.classic.session_timeout_ms,
                rebalance_timeout_ms=member.rebalance_timeout_ms,
                subscription=metadata,
                assignment=assignment_bytes(member.assigned, topics, read_subscription(metadata)[0]),
            )
        )
    common = set.intersection(*({name for name, _ in each} for each in protocols.values()))
    return StoredGroup(
        protocol_type=CONSUMER,
        generation_id=generation_id,
        protocol_name=min(common),
        leader=stored[0].member_id,
        members=tuple(stored),
    ), protocols


# --- partitions by names and by ids --------------------------------------------------------------------------


def _ids(named: Iterable[AssignedPartitions | OwnedPartitions], topics: ClusterTopics) -> Partitions:
    return frozenset(
        (topic.topic_id, number)
        for each in named
        if (topic := topics.find(each.topic)) is not None
        for number in each.partitions
    )


def assignment_bytes(partitions: Partitions, topics: ClusterTopics, version: int = 3) -> bytes:
    """Return partitions as an assignment of the consumer protocol. Partitions of deleted topics are left out."""
    names = {topic_id: topics.name_of(topic_id) for topic_id, _ in partitions}
    named = sorted((name, number) for topic_id, number in partitions if (name := names[topic_id]) is not None)
    assigned = tuple(
        AssignedPartitions(topic=name, partitions=numbers) for name, numbers in numbers_by_topic(named).items()
    )
    return write_versioned(ConsumerProtocolAssignment(assigned_partitions=assigned, user_data=None), version)


def subscription_bytes(topics: frozenset[str]) -> bytes:
    """Return topics as a subscription of the consumer protocol."""
    return write_versioned(ConsumerProtocolSubscription(topics=tuple(sorted(topics)), user_data=None), 3)
