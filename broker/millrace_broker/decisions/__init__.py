"""What the controller decides and tells brokers, as frozen data: it makes it, replicas and brokers take it over.

* ``model``     assignments, leadership, changes of ISRs
* ``requests``  LeaderAndIsr, UpdateMetadata, StopReplica
"""

from millrace_broker.decisions.model import (
    LEADER_DURING_DELETE,
    NO_LEADER,
    Answers,
    IsrChange,
    Leadership,
    ReplicaAssignment,
    TopicPartition,
)
from millrace_broker.decisions.requests import (
    BrokerRequest,
    LeaderAndIsrRequest,
    LeaderAndIsrState,
    PartitionDecision,
    StopReplicaRequest,
    StopReplicaState,
    UpdateMetadataRequest,
)

__all__ = [
    "LEADER_DURING_DELETE",
    "NO_LEADER",
    "Answers",
    "BrokerRequest",
    "IsrChange",
    "LeaderAndIsrRequest",
    "LeaderAndIsrState",
    "Leadership",
    "PartitionDecision",
    "ReplicaAssignment",
    "StopReplicaRequest",
    "StopReplicaState",
    "TopicPartition",
    "UpdateMetadataRequest",
]
