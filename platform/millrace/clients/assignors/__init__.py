"""Who of a consumer group reads which partitions: the four assignors of Kafka 3.9, as pure functions of the group.

The leader of a group gives all members' subscriptions to the assignor that the group agreed on, and gets what each
member shall read. Equal input gives equal output whatever the order of the members, so the result can be replayed.

* ``model``               a member as it joined; what an assignor is
* ``registry``            assignors by Kafka's names
* ``range_assignor``      of each topic a run of neighbouring partitions
* ``round_robin``         all partitions dealt out in turn
* ``sticky``              balance with the fewest moves; ``sticky_user_data`` is how members say what they had
* ``cooperative_sticky``  the same, and nothing changes hands before its owner has let go of it
* ``sticky_rules``        what the two share, from ``ownership`` (who held what, by generation), ``group`` (who may hold
                          what), ``equal_subscriptions`` and ``differing_subscriptions`` (the latter with ``balancing``
                          and ``movements``)
* ``racks``               which members are near which partitions: all but ``roundrobin`` see to that, within balance
"""

from millrace.clients.assignors.cooperative_sticky import CooperativeStickyAssignor
from millrace.clients.assignors.model import Assignment, Assignor, MemberSubscription, PartitionRacks
from millrace.clients.assignors.range_assignor import RangeAssignor
from millrace.clients.assignors.registry import ASSIGNORS, find_assignor
from millrace.clients.assignors.round_robin import RoundRobinAssignor
from millrace.clients.assignors.sticky import StickyAssignor

__all__ = [
    "ASSIGNORS",
    "Assignment",
    "Assignor",
    "CooperativeStickyAssignor",
    "MemberSubscription",
    "PartitionRacks",
    "RangeAssignor",
    "RoundRobinAssignor",
    "StickyAssignor",
    "find_assignor",
]
