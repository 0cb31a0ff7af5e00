"""Identity of the group member that sent a request."""

from __future__ import annotations

from millrace.protocol import millrace_pb2 as pb
from millrace_broker.groups import Identity

FromMember = pb.SyncGroupRequest | pb.HeartbeatRequest | pb.OffsetCommitRequest | pb.TxnOffsetCommitRequest


def identity_of(request: FromMember) -> Identity:
    """Return the identity of the member that sent the request."""
    return Identity(
        member_id=request.member_id,
        group_instance_id=request.group_instance_id or None,
        generation_id=request.generation_id,
        kafka_version=request.kafka_version if isinstance(request, pb.OffsetCommitRequest) else 0,
    )
