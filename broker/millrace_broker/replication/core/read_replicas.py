"""Which replica a consumer is sent to read from: the leader decides, by what it knows of its followers. Pure.

A follower is named only where it has what is asked for and is in sync, so that a consumer neither waits at one that
lags nor falls behind with it. The consumer comes back to the leader after ``metadata.max.age.ms``, or at any error.

Source: KIP-392; Kafka's ``ReplicaManager.findPreferredReadReplica`` and ``RackAwareReplicaSelector``.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaView:
    """A replica as the leader sees it. ``rack`` is empty where its broker has none, or is not there.

    ``caught_up_ms_ago`` is how long ago it was known to have all that the leader had; 0 of the leader itself.
    """

    broker_id: int
    rack: str
    log_start_offset: int
    log_end_offset: int
    caught_up_ms_ago: int
    is_in_sync: bool


ReplicaSelector = Callable[[str, ReplicaView, Collection[ReplicaView]], ReplicaView]
"""From a consumer's rack, the leader and all that may be read from (the leader among them) to the one to read from."""


def same_rack(client_rack: str, leader: ReplicaView, replicas: Collection[ReplicaView]) -> ReplicaView:
    """The leader if it is in the consumer's rack or nobody is, else the one there that has the most.

    Of several it is the one that caught up last, then the one of the highest id.
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
    """The broker that a consumer is to read from instead of the leader; None: it is to stay.

    Only consumers are sent elsewhere: do not ask for a fetch of a follower.
    """
    readable = [
        each for each in followers if each.is_in_sync and each.log_start_offset <= fetch_offset <= each.log_end_offset
    ]
    selected = selector(client_rack, leader, [*readable, leader])
    return None if selected.broker_id == leader.broker_id else selected.broker_id
