"""The broker's place in a cluster: standalone, or a ZooKeeper member.

* ``interface``       the common interface of both
* ``standalone``      a standalone broker, with its metadata in a file
* ``member``          a broker of a cluster: its sessions and registrations, and the controller's requests
* ``opened_metadata``, ``zookeeper_metadata``  the metadata, opened before the logs
* ``session``         coordination that survives a change of sessions
* ``own_registration``, ``last_session``  the broker's registration, and that of its last process
* ``process_watch``   connections to other brokers, which detect the end of their processes
* ``catalog``, ``topic_lookups``, ``missing_topics``  topics and their leaders, and topics that are not known yet
* ``deliveries``      the controller's requests to brokers, over the network or to this broker
* ``administration``  elections, reassignments and shutdowns on request to the controller
* ``deployment``      creation, growth and deletion of topics through the controller
* ``isr_requests``    ISR changes that leaders request from the controller
* ``notifications``, ``changed_configs``  changed configurations and ACLs
* ``wire``            requests and answers as protobuf messages
"""
