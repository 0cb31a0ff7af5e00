"""Replicas of partitions: which of them a consumer reads from (KIP-392)."""

from millrace_broker.replication.read_replicas import ReplicaSelector, ReplicaView, preferred_read_replica, same_rack

__all__ = ["ReplicaSelector", "ReplicaView", "preferred_read_replica", "same_rack"]
