"""State machines of leaders and followers, without effects (docs/design/0031).

* ``partition``     this broker's replica: it leads, follows or stops as the controller decides
* ``leader``        high watermark, ISR, acknowledgement of acks=all
* ``follower``      requests to the leader, and the effects of its answers
* ``truncation``    the offset where two logs diverge, by leader epochs
* ``fetch_session`` one request for all partitions that are fetched from one broker
* ``read_replicas`` the replica that a consumer reads from (KIP-392)
* ``model``         frozen data that the others share
"""

from millrace_broker.replication.core.fetch_session import FetchSession, SessionRequest
from millrace_broker.replication.core.follower import FetchedRecords, FetchFrom, Follower
from millrace_broker.replication.core.leader import AlterIsr, Leader, LeaderOutcome
from millrace_broker.replication.core.model import UNKNOWN_EPOCH, EpochEnd, LogView, ReplicationSettings
from millrace_broker.replication.core.partition import Replica, RoleChange, check_controller_epoch
from millrace_broker.replication.core.read_replicas import (
    ReplicaSelector,
    ReplicaView,
    preferred_read_replica,
    same_rack,
)

__all__ = [
    "UNKNOWN_EPOCH",
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
