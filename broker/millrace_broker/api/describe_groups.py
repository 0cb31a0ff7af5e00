"""Handler of DescribeGroups, which describes groups and their members, each group separately."""

from __future__ import annotations

from millrace.coordinator_records import (
    AssignedPartitions,
    ConsumerProtocolAssignment,
    ConsumerProtocolSubscription,
    write_versioned,
)
from millrace.protocol import millrace_pb2 as pb
from millrace_broker.api.common.access_rules import authorized
from millrace_broker.api.common.errors import error_message
from millrace_broker.api.common.group_kinds import CLASSIC, CONSUMER, SHARE
from millrace_broker.api.common.groups import find_group
from millrace_broker.api.common.request_context import RequestContext
from millrace_broker.broker import Broker
from millrace_broker.groups import ConsumerGroup, GroupEntry, assignment_bytes, subscription_bytes
from millrace_broker.runtime.turns import Turns
from millrace_broker.share_groups import ShareGroup


@authorized("DescribeGroups")
async def handle(
    broker: Broker, request: pb.DescribeGroupsRequest, context: RequestContext
) -> pb.DescribeGroupsResponse:
    """Describe the groups. As in Kafka, member metadata and assignments are shown only for a stable group."""
    response, turns = pb.DescribeGroupsResponse(), Turns()
    for group_id in request.group_ids:
        await turns.next()
        result = response.groups.add(group_id=group_id)
        try:
            found = find_group(broker, group_id)
            if isinstance(found, ShareGroup):
                _describe_shared(result, found)
            else:
                _describe(result, broker, found)
            _set_coordinator(result, broker, context.listener_name)
        except Exception as error:  # noqa: BLE001 - the group's error; unexpected errors are logged
            result.state = "Dead"
            result.error.CopyFrom(error_message(error))
    return response


def _describe(result: pb.DescribeGroupsResponse.Group, broker: Broker, entry: GroupEntry) -> None:
    group = entry.group
    if isinstance(group, ConsumerGroup):
        _describe_consumers(result, broker, group)
        return
    result.type = CLASSIC
    result.state = group.state.value
    result.protocol_type = group.protocol_type
    result.generation_id = group.generation_id
    protocol = group.stable_protocol
    result.protocol = protocol or ""
    for member in group.members:
        described = result.members.add(
            member_id=member.member_id,
            group_instance_id=member.group_instance_id or "",
            client_id=member.client_id,
            client_host=member.client_host,
        )
        if protocol is not None:
            described.metadata = member.metadata(protocol)
            described.assignment = member.assignment


def _describe_consumers(result: pb.DescribeGroupsResponse.Group, broker: Broker, group: ConsumerGroup) -> None:
    result.type = result.protocol_type = CONSUMER
    result.state = group.state.value
    result.generation_id = group.epoch
    result.protocol = group.assignor(broker.groups.consumer_settings)
    for member in group.members.values():
        result.members.add(
            member_id=member.member_id,
            group_instance_id=member.instance_id or "",
            client_id=member.client_id,
            client_host=member.client_host,
            metadata=subscription_bytes(group.topics_of(member)),
            assignment=assignment_bytes(member.assigned, broker.groups.topics),
        )


def _describe_shared(result: pb.DescribeGroupsResponse.Group, group: ShareGroup) -> None:
    result.type = result.protocol_type = SHARE
    result.state = group.state
    result.generation_id = group.members.epoch
    for member in group.members.members.values():
        topics = tuple(sorted(member.topics))
        assigned = tuple(
            AssignedPartitions(topic=topic, partitions=partitions)
            for topic, partitions in (member.sent_assignment or {}).items()
        )
        result.members.add(
            member_id=member.member_id,
            client_id=member.client_id,
            client_host=member.client_host,
            member_epoch=member.epoch,
            rack_id=member.rack_id,
            metadata=write_versioned(ConsumerProtocolSubscription(topics=topics, user_data=None), 3),
            assignment=write_versioned(ConsumerProtocolAssignment(assigned_partitions=assigned, user_data=None), 3),
        )


def _set_coordinator(result: pb.DescribeGroupsResponse.Group, broker: Broker, listener: str) -> None:
    host, port = broker.endpoints.get(listener, ("", -1))  # a listener may not be advertised
    rack = broker.config.broker_rack
    result.coordinator.CopyFrom(pb.BrokerNode(node_id=broker.config.broker_id, host=host, port=port, rack=rack))
