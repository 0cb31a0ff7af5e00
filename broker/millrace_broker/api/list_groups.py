"""Handler of ListGroups for consumer groups and share groups coordinated here."""

from __future__ import annotations

from millrace.protocol import millrace_pb2 as pb
from millrace_broker.api.common.access_rules import authorized
from millrace_broker.api.common.group_kinds import SHARE, kind_of
from millrace_broker.api.common.request_context import RequestContext
from millrace_broker.broker import Broker


@authorized("ListGroups")
async def handle(broker: Broker, request: pb.ListGroupsRequest, context: RequestContext) -> pb.ListGroupsResponse:
    """List the groups. Raises ``CoordinatorLoadInProgressError``."""
    states = {state.casefold() for state in request.states}
    types = {kind.casefold() for kind in request.types}
    groups = [
        pb.ListGroupsResponse.Group(
            group_id=group_id,
            protocol_type=entry.group.protocol_type,
            state=entry.group.state.value,
            type=kind_of(entry.group),
        )
        for group_id, entry in broker.groups.groups()
    ]
    groups += [
        pb.ListGroupsResponse.Group(group_id=group.group_id, protocol_type=SHARE, state=group.state, type=SHARE)
        for group in broker.share_groups.groups()
    ]
    wanted = (
        group
        for group in groups
        if (not states or group.state.casefold() in states) and (not types or group.type in types)
    )
    return pb.ListGroupsResponse(groups=sorted(wanted, key=lambda group: group.group_id))
