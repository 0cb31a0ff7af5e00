"""The controller's decisions and its requests to brokers, as frozen data.

The controller makes these objects; brokers and their replicas apply them.

* ``model``     assignments, leadership, ISR changes
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
    by_topic,
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
    "by_topic",
]
