"""Replicas of partitions: what leaders and followers know and decide, as pure machines (docs/design/0031).

* ``partition``     this broker's replica: leads, follows or stops as the controller says
* ``leader``        high watermark, replicas in sync, what acks=all waits for
* ``follower``      what to ask the leader next, and what to do with its answer
* ``truncation``    where two logs part, by leader epochs
* ``fetch_session`` one request for all partitions followed from a broker
* ``read_replicas`` which replica a consumer reads from (KIP-392)
"""

from millrace_broker.replication.core.fetch_session import FetchSession, SessionRequest
from millrace_broker.replication.core.follower import FetchedRecords, FetchFrom, Follower
from millrace_broker.replication.core.leader import AlterIsr, Leader, LeaderOutcome
from millrace_broker.replication.core.model import EpochEnd, LogView, ReplicationSettings
from millrace_broker.replication.core.partition import Replica, RoleChange, check_controller_epoch
from millrace_broker.replication.core.read_replicas import (
    ReplicaSelector,
    ReplicaView,
    preferred_read_replica,
    same_rack,
)

__all__ = [
    "AlterIsr",
    "EpochEnd",
    "FetchFrom",
    "FetchSession",
    "FetchedRecords",
    "Follower",
    "Leader",
    "LeaderOutcome",
    "LogView",
    "Replica",
    "ReplicaSelector",
    "ReplicaView",
    "ReplicationSettings",
    "RoleChange",
    "SessionRequest",
    "check_controller_epoch",
    "preferred_read_replica",
    "same_rack",
]
