"""The choice of the replica that a consumer reads from (KIP-392). Pure.

The leader decides, by the fetch progress of its followers. It names a follower only if that follower is in sync and has
the fetch offset. The consumer therefore neither waits for a lagging follower nor falls behind with it. The consumer
returns to the leader after ``metadata.max.age.ms``, or after any error.

Source: KIP-392; Kafka's ``ReplicaManager.findPreferredReadReplica`` and ``RackAwareReplicaSelector``.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaView:
    """A replica as the leader sees it.

    ``rack`` is empty if the broker has no rack or is not alive. ``caught_up_ms_ago`` is the time since the replica was
    last known to have the leader's whole log; 0 for the leader itself.
    """

    broker_id: int
    rack: str
    log_start_offset: int
    log_end_offset: int
    caught_up_ms_ago: int
    is_in_sync: bool


ReplicaSelector = Callable[[str, ReplicaView, Collection[ReplicaView]], ReplicaView]
"""Selects the replica to read from, given the consumer's rack, the leader, and all readable replicas with the
leader.
"""


def same_rack(client_rack: str, leader: ReplicaView, replicas: Collection[ReplicaView]) -> ReplicaView:
    """Return the leader if it is in the consumer's rack or no replica is, else the most complete replica there.

    Of equally complete replicas, return the one that caught up last, then the one with the highest id.
    """
    nearby = [replica for replica in replicas if client_rack and replica.rack == client_rack]
    if not nearby or leader in nearby:
        return leader
    return max(nearby, key=lambda each: (each.log_end_offset, -each.caught_up_ms_ago, each.broker_id))


def preferred_read_replica(
    client_rack: str,
    fetch_offset: int,
    leader: ReplicaView,
    followers: Iterable[ReplicaView],
    selector: ReplicaSelector = same_rack,
) -> int | None:
    """Return the broker that a consumer reads from instead of the leader; None means the leader.

    Call it for consumers only, not for the fetch of a follower.
    """
    readable = [
        each for each in followers if each.is_in_sync and each.log_start_offset <= fetch_offset <= each.log_end_offset
    ]
    selected = selector(client_rack, leader, [*readable, leader])
    return None if selected.broker_id == leader.broker_id else selected.broker_id
