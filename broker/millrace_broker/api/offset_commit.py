"""OffsetCommit: how far a group has come in some partitions, from a member or from somebody without a group's help."""

from __future__ import annotations

from millrace.protocol import millrace_pb2 as pb
from millrace_broker.api.common.call import Call
from millrace_broker.api.common.commits import checked_commits
from millrace_broker.api.common.identities import identity_of
from millrace_broker.broker import Broker


async def handle(broker: Broker, request: pb.OffsetCommitRequest, call: Call) -> pb.OffsetCommitResponse:
    """Commit; errors of a partition stand beside it, what ``GroupShard.commit`` raises ends the call."""
    shard = await broker.groups.soon(request.group_id, may_be_empty=True)
    response = pb.OffsetCommitResponse()
    commits = checked_commits(broker, request.topics, response.topics)
    await shard.commit(request.group_id, identity_of(request), commits)
    return response
