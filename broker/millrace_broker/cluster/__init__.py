"""A broker among others: by itself, or one of a cluster on ZooKeeper.

* ``interface``       what both ways have in common
* ``standalone``      a broker by itself, with its metadata in a file
* ``member``          a broker of a cluster: its sessions and registrations, and the requests of controllers
* ``zookeeper_metadata``  a cluster's metadata, opened before the logs
* ``session``         coordination, whichever session is open
* ``own_registration``, ``last_session``  the broker's registration, and that of its last process
* ``process_watch``   connections to other brokers, which tell when their processes end
* ``catalog``, ``topic_lookups``, ``missing_topics``  topics and their leaders, and topics that are not known yet
* ``deliveries``      the controller's requests to brokers, over the network or to this one
* ``administration``  elections, reassignments and shutdowns that the controller is asked for
* ``deployment``      topics made, grown and deleted by way of the controller
* ``isr_requests``    changes of ISRs that leaders ask the controller for
* ``notifications``, ``changed_configs``  configurations that changed
* ``wire``            requests and answers as messages
"""
