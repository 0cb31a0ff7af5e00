"""This broker's replicas, which run ``core`` with logs, tasks and the network.

* ``manager``          all replicas: decisions of the controller, high watermarks, ISR changes, the clock
* ``hosted``           one replica: its state machine and its log
* ``replica_logs``     the logs of the replicas that the controller names
* ``isr_changes``      ISR changes that leaders ask the controller for
* ``fetch_sessions``   fetch sessions of followers; a request names only changed partitions (KIP-227)
* ``serving``          answers to follower fetches
* ``leadership_checks`` checks that this broker still leads, for reads of a coordinator's state
* ``replica_fetchers`` the tasks that fetch from other brokers, several for each source broker
* ``applying``         effects of a follower's state machine on its log
* ``partitions``       partitions of this broker by name: topic, log, leadership
* ``waiters``          calls that wait for records, and the locks of partitions
* ``appends``          appends as a leader
* ``throttles``        replication quotas of replicas that are not in sync
* ``delayed_produce``  calls that wait for replicas
* ``wire``             fetch requests and answers as protobuf messages
* ``views``            the present state of replicas, for metrics and for administrators
"""

from millrace_broker.replication.runtime.appends import ACKNOWLEDGED_WITHIN_S, Appends
from millrace_broker.replication.runtime.hosted import HostedReplica
from millrace_broker.replication.runtime.isr_changes import AlterPartition
from millrace_broker.replication.runtime.manager import ReplicaManager
from millrace_broker.replication.runtime.partitions import LeaderAndEpoch, PartitionDirectory, ServedPartition
from millrace_broker.replication.runtime.views import LedPartition, ReplicationStatistics
from millrace_broker.replication.runtime.waiters import Waiters

__all__ = [
    "ACKNOWLEDGED_WITHIN_S",
    "AlterPartition",
    "Appends",
    "HostedReplica",
    "LeaderAndEpoch",
    "LedPartition",
    "PartitionDirectory",
    "ReplicaManager",
    "ReplicationStatistics",
    "ServedPartition",
    "Waiters",
]
