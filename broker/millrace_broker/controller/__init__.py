"""The controller: one broker that decides who has and who leads which partition (docs/design/0032).

* ``controller``                 events to handlers; failover
* ``effects``                    what handlers want of ZooKeeper and of brokers, as data
* ``requests``                   LeaderAndIsr, UpdateMetadata, StopReplica, merged per broker
* ``context``, ``model``         what the controller believes
* ``partition_states``, ``replica_states``, ``elections``
* ``deletion``, ``reassignment``, ``isr_changes``, ``balancing``
* ``statistics``                 the numbers
* ``assignment``                 which brokers get the replicas of new partitions
"""

from millrace_broker.controller.assignment import (
    BrokerRack,
    assign_more_partitions,
    assign_replicas,
    check_assignment,
)
from millrace_broker.controller.controller import Controller
from millrace_broker.controller.effects import ControllerMovedError, Effect, Steps
from millrace_broker.controller.elections import Occasion
from millrace_broker.controller.isr_changes import IsrChange
from millrace_broker.controller.model import Leadership, LiveBroker, ReplicaAssignment, TopicPartition

__all__ = [
    "BrokerRack",
    "Controller",
    "ControllerMovedError",
    "Effect",
    "IsrChange",
    "Leadership",
    "LiveBroker",
    "Occasion",
    "ReplicaAssignment",
    "Steps",
    "TopicPartition",
    "assign_more_partitions",
    "assign_replicas",
    "check_assignment",
]
