"""The controller, Kafka's ``KafkaController`` (docs/design/0032).

One broker of a cluster is the controller. It assigns partitions to brokers and elects their leaders.

Pure:

* ``controller``                 events and their handlers; failover
* ``effects``                    ZooKeeper operations and broker requests of the handlers, as data
* ``requests``                   LeaderAndIsr, UpdateMetadata, StopReplica, merged per broker
* ``context``, ``model``         the controller's state of the cluster
* ``partition_states``, ``replica_states``, ``elections``
* ``deletion``, ``reassignment``, ``alter_partition``, ``balancing``
* ``statistics``                 metrics of the cluster

With input and output:

* ``event_loop``      runs the controller of a broker: one event after the other, and the effects of each
* ``store``           the controller's nodes in ZooKeeper
* ``request_queues``  queues of requests to brokers, each in order
* ``tool_requests``   requests that tools write into ZooKeeper nodes
* ``event_times``     durations of events
"""

from millrace_broker.controller.controller import Controller
from millrace_broker.controller.effects import ControllerMovedError, Effect, Steps
from millrace_broker.controller.elections import Occasion
from millrace_broker.controller.model import LiveBroker

__all__ = ["Controller", "ControllerMovedError", "Effect", "LiveBroker", "Occasion", "Steps"]
