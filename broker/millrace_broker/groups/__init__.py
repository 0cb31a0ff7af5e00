"""Classic groups and consumer groups, with their committed offsets.

Pure parts:

* ``requests``        requests to a group, its answers, its settings
* ``states``          states of a classic group, and the transitions between them
* ``members``         members of a group
* ``classic_group``   state machine of one classic group, which owns the following parts
* ``rebalance``       steps from a generation to the next
* ``static_members``  replacement of static members
* ``sessions``        session timers of members
* ``open_calls``      calls that wait for their answers
* ``record_writes``   writes of the group's record that have not ended
* ``subscriptions``   topics of the members
* ``effects``         effects that a group asks its shard to carry out
* ``offsets``         committed offsets of one group
* ``records``         groups and offsets as records of ``__consumer_offsets``
* ``loading``         groups and offsets from the records of a partition
* ``consumer``        groups of KIP-848, whose partitions the coordinator assigns

Parts that act:

* ``entries``         groups of either protocol with their offsets
* ``callers``         callers that wait for the answers of classic groups
* ``timers``          timers of groups in two purgatories
* ``consumer_calls``  calls to the consumer groups of one shard, with their timers and appends
* ``shard``           groups of one partition of ``__consumer_offsets``, with their callers and writes
* ``coordinator``     all groups of this broker; handlers call it
"""

from millrace_broker.groups.consumer.classic_members import assignment_bytes, subscription_bytes
from millrace_broker.groups.consumer.consumer_group import (
    ConsumerGroup,
    Heartbeat,
    HeartbeatAnswer,
    Visible,
    every_topic,
)
from millrace_broker.groups.consumer.topics import matches
from millrace_broker.groups.coordinator import GroupCoordinator, GroupStatistics
from millrace_broker.groups.entries import GroupEntry
from millrace_broker.groups.offsets import CommittedOffset
from millrace_broker.groups.requests import (
    WITH_MEMBER_EPOCHS,
    Identity,
    JoinAnswer,
    JoinRequest,
    MemberIdGiven,
    SyncRequest,
)
from millrace_broker.groups.shard import GroupShard

__all__ = [
    "WITH_MEMBER_EPOCHS",
    "CommittedOffset",
    "ConsumerGroup",
    "GroupCoordinator",
    "GroupEntry",
    "GroupShard",
    "GroupStatistics",
    "Heartbeat",
    "HeartbeatAnswer",
    "Identity",
    "JoinAnswer",
    "JoinRequest",
    "MemberIdGiven",
    "SyncRequest",
    "Visible",
    "assignment_bytes",
    "every_topic",
    "matches",
    "subscription_bytes",
]
