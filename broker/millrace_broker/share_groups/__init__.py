"""Share groups (KIP-932), whose consumers share the records of a partition.

Pure parts:

* ``in_flight``  delivery states of the records of one partition
* ``members``    members of a group, and their assignments
* ``records``    delivery states as records of ``__share_group_state``

Parts that act:

* ``sources``      sources of records, which are logs of this broker or leaders on other brokers
* ``partition``    one share partition, with its records, its locks and their timer
* ``shard``        groups of one partition of ``__share_group_state``
* ``coordinator``  all share groups of this broker; handlers call it
"""

from millrace_broker.share_groups.coordinator import (
    FetchLimits,
    ShareCoordinator,
    ShareFetchPartition,
    SharePartitionData,
    ShareStatistics,
)
from millrace_broker.share_groups.in_flight import Acknowledgement, ShareGroupSettings
from millrace_broker.share_groups.members import ShareHeartbeat
from millrace_broker.share_groups.shard import ShareGroup, ShareProgress

__all__ = [
    "Acknowledgement",
    "FetchLimits",
    "ShareCoordinator",
    "ShareFetchPartition",
    "ShareGroup",
    "ShareGroupSettings",
    "ShareHeartbeat",
    "SharePartitionData",
    "ShareProgress",
    "ShareStatistics",
]
