"""Consumer groups: who is a member, who reads what, and how far everybody has come.

Pure:

``model``      requests, answers and effects
``roster``     the members of a group
``group``      the machine of one group (on ``base`` and ``rebalance``)
``offsets``    what a group has committed
``records``    groups and offsets as records of ``__consumer_offsets``, and back

At the edge:

``shard``        the groups of one partition of ``__consumer_offsets``, with their timers and callers
``coordinator``  all of them: what handlers call
"""

from millrace_broker.groups.coordinator import GroupCoordinator, GroupStatistics
from millrace_broker.groups.model import (
    Identity,
    JoinAnswer,
    JoinRequest,
    MemberIdGiven,
    SyncRequest,
)
from millrace_broker.groups.offsets import Committed, Partition
from millrace_broker.groups.shard import Entry, GroupShard

__all__ = [
    "Committed",
    "Entry",
    "GroupCoordinator",
    "GroupShard",
    "GroupStatistics",
    "Identity",
    "JoinAnswer",
    "JoinRequest",
    "MemberIdGiven",
    "Partition",
    "SyncRequest",
]
