"""Partition assignors of consumer groups: Kafka 3.9's four, as pure functions.

The leader of a group passes all members' subscriptions to the assignor that the group agreed on, and gets the
assignment. Equal input gives equal output in any order of the members, so that the result is reproducible.

* ``model``               a group member, and the assignor interface
* ``registry``            assignors by Kafka's names
* ``range_assignor``      a run of adjacent partitions of each topic
* ``round_robin``         all partitions assigned in turn
* ``sticky``              balance with the fewest moves; ``sticky_user_data`` encodes the members' previous partitions
* ``cooperative_sticky``  the same, but a partition moves only after its owner has revoked it
* ``sticky_rules``        common rules of the two, from ``ownership`` (previous owners by generation), ``group``
                          (subscribers), ``equal_subscriptions`` and ``differing_subscriptions`` (the latter with
                          ``balancing`` and ``movements``)
* ``racks``               members and partitions in the same rack: all but ``roundrobin`` prefer them, within balance
"""

from millrace.clients.assignors.cooperative_sticky import CooperativeStickyAssignor
from millrace.clients.assignors.model import Assignment, Assignor, MemberSubscription, PartitionRacks
from millrace.clients.assignors.range_assignor import RangeAssignor
from millrace.clients.assignors.registry import ASSIGNORS, find_assignor, find_assignors
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
    "find_assignors",
]
