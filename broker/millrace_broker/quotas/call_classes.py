"""Classes of calls, each with its own requests, connections and memory.

All calls of a broker are of its class. The class of another client's call follows from the kind of the call. Brokers
introduce themselves with ``BROKER_SOFTWARE_NAME``. ``ListenerAccess.believes_broker`` decides whether a listener
accepts that.
"""

from __future__ import annotations

from enum import Enum
from typing import Final

BROKER_SOFTWARE_NAME: Final = "millrace-broker"
"""``client_software_name`` in a broker's greeting. Brokers do not call each other over gRPC."""


class CallClass(Enum):
    """Class of a call."""

    CLIENT = "client"
    """Calls that carry or change records and offsets, or may need any amount of memory."""
    CONTROL = "control"
    """Small calls of group membership and administration."""
    BROKER = "broker"
    """Calls of brokers: follower fetches, controller requests, transaction markers."""


_CONTROL_CALLS: Final = frozenset(
    {
        # Look-up of the broker for any other call.
        "ApiVersions",
        "FindCoordinator",
        "Metadata",
        # Membership, where a refused member loses its partitions.
        "ConsumerGroupHeartbeat",
        "Heartbeat",
        "JoinGroup",
        "LeaveGroup",
        "ShareGroupHeartbeat",
        "SyncGroup",
        # Authentication, and administration.
        "SaslHandshake",
        "SaslAuthenticate",
        "AlterUserScramCredentials",
        "DescribeUserScramCredentials",
        "AlterClientQuotas",
        "AlterConfigs",
        "AlterPartitionReassignments",
        "AlterReplicaLogDirs",
        "AlterShareGroupOffsets",
        "ConsumerGroupDescribe",
        "CreateAcls",
        "CreateDelegationToken",
        "CreatePartitions",
        "CreateTopics",
        "DeleteAcls",
        "DeleteGroups",
        "DeleteRecords",
        "DeleteShareGroupOffsets",
        "DeleteTopics",
        "DescribeAcls",
        "DescribeClientQuotas",
        "DescribeCluster",
        "DescribeConfigs",
        "DescribeDelegationToken",
        "DescribeGroups",
        "DescribeLogDirs",
        "DescribeProducers",
        "DescribeShareGroupOffsets",
        "DescribeTopicPartitions",
        "DescribeTransactions",
        "ElectLeaders",
        "ExpireDelegationToken",
        "IncrementalAlterConfigs",
        "ListConfigResources",
        "ListGroups",
        "ListPartitionReassignments",
        "ListTransactions",
        "OffsetDelete",
        "RenewDelegationToken",
        "ShareGroupDescribe",
    }
)


def class_of(name: str, *, is_broker: bool = False) -> CallClass:
    """Return the class of a call. ``is_broker`` says that the connection is another broker's."""
    if is_broker:
        return CallClass.BROKER
    return CallClass.CONTROL if name in _CONTROL_CALLS else CallClass.CLIENT
