"""Handler of ShareGroupHeartbeat, for share group membership and assignment (KIP-932)."""

from __future__ import annotations

from millrace.protocol import millrace_pb2 as pb
from millrace_broker.api.common.access_rules import authorized
from millrace_broker.api.common.group_kinds import CLASSIC, check_is_not
from millrace_broker.api.common.request_context import RequestContext
from millrace_broker.broker import Broker
from millrace_broker.share_groups import ShareHeartbeat


@authorized("ShareGroupHeartbeat")
async def handle(
    broker: Broker, request: pb.ShareGroupHeartbeatRequest, context: RequestContext
) -> pb.ShareGroupHeartbeatResponse:
    """Record the heartbeat of a member that joins, stays or leaves, and answer with its assignment.

    Raises ``GroupIdNotFoundError`` for the id of a group of consumers, and the errors of ``ShareMembers.beat``.
    """
    await check_is_not(broker, request.group_id, CLASSIC, is_new=not request.member_epoch)
    shard = await broker.share_groups.wait_for_shard(request.group_id)
    beat = ShareHeartbeat(
        member_id=request.member_id,
        member_epoch=request.member_epoch,
        client_id=request.client_id or context.client_id,
        client_host=request.client_host or context.client_host,
        rack_id=request.rack_id,
        topics=frozenset(request.subscribed_topics)
        if request.subscribed_topics or request.has_subscription or not request.member_epoch
        else None,
    )
    epoch, assignment = shard.heartbeat(request.group_id, beat)
    response = pb.ShareGroupHeartbeatResponse(
        member_epoch=epoch,
        heartbeat_interval_ms=broker.share_groups.settings_of(request.group_id).heartbeat_interval_ms,
    )
    if assignment is not None:
        response.has_assignment = True
        for topic, partitions in assignment.items():
            info = broker.catalog.topics.get(topic)
            if info is not None:  # else it was deleted just now, and the next heartbeat's assignment is another one
                response.assignment.add(name=topic, partitions=partitions, topic_id=info.topic_id.bytes)
    return response
