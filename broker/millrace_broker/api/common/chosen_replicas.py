"""Replicas that a request assigns by hand, shared by CreateTopics and CreatePartitions."""

from __future__ import annotations

from collections.abc import Iterable

from millrace.errors import InvalidReplicaAssignmentError
from millrace.protocol import millrace_pb2 as pb


def chosen_replicas(assigned: Iterable[pb.PartitionReplicas]) -> dict[int, tuple[int, ...]]:
    """Return the replicas by partition. Raises ``InvalidReplicaAssignmentError`` if one is named twice."""
    found: dict[int, tuple[int, ...]] = {}
    for each in assigned:
        if each.partition in found:
            raise InvalidReplicaAssignmentError(f"partition {each.partition} is assigned twice: assign it once")
        found[each.partition] = tuple(each.replicas)
    return found
