"""This broker's replicas at work: ``core`` decides, this folder runs it on logs, tasks and the network.

* ``manager``          all of them: what the controller says, watermarks, changes of the ISR, the clock
* ``hosted``           one of them: its machine, its log
* ``replica_logs``     the logs of the replicas that the controller names
* ``isr_changes``      what leaders ask the controller for
* ``sessions``         what each follower has asked for, of which its requests name the changes (KIP-227)
* ``serving``          answers to followers
* ``replica_fetchers`` the tasks that fetch from other brokers, one for each source
* ``applying``         what a follower's machine wants done to its log
* ``partitions``       partitions of this broker by name: their topics, logs, and whether it leads them
* ``waiters``          calls that wait for records, and the locks of partitions
* ``appends``          appends as a leader
* ``throttles``        limits on the bytes that go to and come from replicas that are not in sync
* ``delayed_produce``  calls that wait for replicas
* ``wire``             questions and answers as messages
* ``views``            how replicas stand, for metrics and for people
"""

from millrace_broker.replication.runtime.appends import Appends
from millrace_broker.replication.runtime.hosted import HostedReplica
from millrace_broker.replication.runtime.isr_changes import AlterPartition
from millrace_broker.replication.runtime.manager import ReplicaManager
from millrace_broker.replication.runtime.partitions import PartitionDirectory, ServedPartition
from millrace_broker.replication.runtime.views import LedPartition, ReplicationStatistics
from millrace_broker.replication.runtime.waiters import Waiters

__all__ = [
    "AlterPartition",
    "Appends",
    "HostedReplica",
    "LedPartition",
    "PartitionDirectory",
    "ReplicaManager",
    "ReplicationStatistics",
    "ServedPartition",
    "Waiters",
]
