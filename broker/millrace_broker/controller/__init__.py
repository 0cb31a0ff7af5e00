"""The controller: one broker that decides who has and who leads which partition (docs/design/0032).

Pure:

* ``controller``                 events to handlers; failover
* ``effects``                    what handlers want of ZooKeeper and of brokers, as data
* ``requests``                   LeaderAndIsr, UpdateMetadata, StopReplica, merged per broker
* ``context``, ``model``         what the controller believes
* ``partition_states``, ``replica_states``, ``elections``
* ``deletion``, ``reassignment``, ``isr_changes``, ``balancing``
* ``statistics``                 the numbers

At the edge:

* ``event_loop``      runs the controller of a broker: events one after the other, their effects carried out
* ``store``           the controller's nodes in ZooKeeper
* ``request_queues``  requests to brokers, each told in order
* ``tool_requests``   what tools ask for, by nodes
* ``event_times``     how long events take
"""

from millrace_broker.controller.controller import Controller
from millrace_broker.controller.effects import ControllerMovedError, Effect, Steps
from millrace_broker.controller.elections import Occasion
from millrace_broker.controller.model import LiveBroker

__all__ = ["Controller", "ControllerMovedError", "Effect", "LiveBroker", "Occasion", "Steps"]
