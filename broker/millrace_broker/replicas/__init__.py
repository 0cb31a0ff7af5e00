"""This broker's replicas at work: the edge of ``replication``, which decides (docs/design/0031).

* ``manager``    all of them: what the controller says, watermarks and acknowledgements, changes of the ISR, the clock
* ``hosted``     one of them: its machine, its log
* ``isr_changes`` what leaders ask the controller for
* ``sessions``   what each follower has asked for, of which its requests name the changes (KIP-227)
* ``serving``    answers to followers
* ``fetching``   the tasks that fetch from other brokers, one for each source
* ``applying``   what a follower's machine wants done to its log
* ``throttles``  limits on the bytes that go to and come from replicas that are not in sync
* ``acknowledgements`` calls that wait for replicas
* ``wire``       questions and answers as messages
* ``views``      how replicas stand, for metrics and for people
"""

from millrace_broker.replicas.hosted import HostedReplica
from millrace_broker.replicas.isr_changes import AlterPartition
from millrace_broker.replicas.manager import ReplicaManager
from millrace_broker.replicas.views import LedPartition, ReplicationStatistics

__all__ = ["AlterPartition", "HostedReplica", "LedPartition", "ReplicaManager", "ReplicationStatistics"]
