"""Share groups (KIP-932): many consumers on one partition, each with records of its own for a time.

Pure:

``delivery``   what has become of the records of one partition
``members``    who is there, and who reads which partitions
``records``    deliveries as records of ``__share_group_state``, and back

At the edge:

``sources``      where the records come from: a log here, or the broker that leads the partition
``partition``    one partition of a group: deliveries written down, locks ended in time
``shard``        the groups of one partition of ``__share_group_state``
``coordinator``  all of them: what handlers call
"""

from millrace_broker.share_groups.coordinator import (
    Fetched,
    FetchLimits,
    ShareCoordinator,
    ShareStatistics,
    Wanted,
)
from millrace_broker.share_groups.delivery import Acknowledgement
from millrace_broker.share_groups.members import Beat
from millrace_broker.share_groups.shard import ShareGroup, ShareProgress

__all__ = [
    "Acknowledgement",
    "Beat",
    "FetchLimits",
    "Fetched",
    "ShareCoordinator",
    "ShareGroup",
    "ShareProgress",
    "ShareStatistics",
    "Wanted",
]
