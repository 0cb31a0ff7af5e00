"""A broker as one of a cluster: its session with ZooKeeper, the controller that it may be, what they say to each other.

* ``member``      this broker's sessions and registrations, and what comes in from controllers
* ``session``     coordination, whichever session is open
* ``catalog``     what this broker knows of the cluster's topics and their leaders
* ``controlling`` this broker's controller, run: ``controller`` decides, what it wants is done here
* ``controller_store`` ... of ZooKeeper
* ``request_queues``, ``deliveries`` ... of the brokers, each told in order
* ``event_times`` how long that takes
* ``administration`` what people ask the controller for
* ``tool_requests`` what tools ask it for, by nodes
* ``deployment``  topics made, grown and deleted by way of the controller
* ``isr_requests`` what leaders ask the controller for
* ``notifications``, ``changed_configs`` configurations that changed
* ``wire``        all that is said, as messages
"""
