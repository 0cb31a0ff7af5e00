"""Handler of OffsetCommit for group members and for consumers without group management."""

from __future__ import annotations

from millrace.protocol import millrace_pb2 as pb
from millrace_broker.api.common.access_rules import authorized
from millrace_broker.api.common.commits import checked_commits
from millrace_broker.api.common.group_kinds import SHARE, check_is_not
from millrace_broker.api.common.identities import identity_of
from millrace_broker.api.common.request_context import RequestContext
from millrace_broker.broker import Broker


@authorized("OffsetCommit")
async def handle(broker: Broker, request: pb.OffsetCommitRequest, context: RequestContext) -> pb.OffsetCommitResponse:
    """Commit the offsets.

    Errors of a partition are reported per partition. Errors of ``GroupShard.commit`` and ``check_is_not`` end the
    call. As in Kafka, the group is not asked if no partition is left.
    """
    response = pb.OffsetCommitResponse()
    commits = await checked_commits(broker, request.topics, response.topics)
    if not commits:
        return response
    shard = await broker.groups.wait_for_shard(request.group_id, may_be_empty=True)
    if request.group_id not in shard.entries:
        await check_is_not(broker, request.group_id, SHARE, is_new=True)
    await shard.commit(request.group_id, identity_of(request), commits)
    return response
