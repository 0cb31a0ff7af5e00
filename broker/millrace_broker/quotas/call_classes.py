"""Classes of calls, each with room of its own for requests, connections and memory.

The class follows from the kind of the call, and from what the connection says of its other end: brokers introduce
themselves with ``BROKER_SOFTWARE_NAME``. Nothing proves that yet, because connections are not authenticated.
"""

from __future__ import annotations

from enum import Enum
from typing import Final

BROKER_SOFTWARE_NAME: Final = "millrace-broker"
"""The ``client_software_name`` of a broker's greeting, and the beginning of its user agent over gRPC."""


class CallClass(Enum):
    """The class of a call."""

    CLIENT = "client"
    """Calls that carry or change records and offsets, or may ask for any amount of memory."""
    CONTROL = "control"
    """Calls that keep members in their groups, and that administrators make. They are small."""
    BROKER = "broker"
    """Calls that brokers make to each other: followers' fetches, the controller's requests, markers."""


_BROKER_CALLS: Final = frozenset(
    {"AlterPartition", "ControlledShutdown", "LeaderAndIsr", "StopReplica", "UpdateMetadata", "WriteTxnMarkers"}
)
_CONTROL_CALLS: Final = frozenset(
    {
        # How a client finds the broker that it needs for any of the others.
        "ApiVersions",
        "FindCoordinator",
        "Metadata",
        # Membership: a member that is refused here loses its partitions.
        "Heartbeat",
        "JoinGroup",
        "LeaveGroup",
        "ShareGroupHeartbeat",
        "SyncGroup",
        # Administration.
        "AlterConfigs",
        "AlterPartitionReassignments",
        "AlterShareGroupOffsets",
        "CreatePartitions",
        "CreateTopics",
        "DeleteGroups",
        "DeleteRecords",
        "DeleteShareGroupOffsets",
        "DeleteTopics",
        "DescribeConfigs",
        "DescribeGroups",
        "DescribeProducers",
        "DescribeShareGroupOffsets",
        "DescribeTransactions",
        "ElectLeaders",
        "ListGroups",
        "ListPartitionReassignments",
        "ListTransactions",
        "OffsetDelete",
    }
)


def class_of(name: str, *, is_broker: bool = False) -> CallClass:
    """Return the class of a call; ``is_broker`` says that the connection is another broker's."""
    if is_broker or name in _BROKER_CALLS:
        return CallClass.BROKER
    return CallClass.CONTROL if name in _CONTROL_CALLS else CallClass.CLIENT
