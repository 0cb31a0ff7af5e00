"""The broker's place in its cluster, which may have no other member.

* ``member``          a broker of a cluster: its sessions and registrations, and the controller's requests
* ``opened_metadata`` a cluster's metadata in ZooKeeper or in a file, opened before the logs
* ``session``         coordination that survives a change of sessions
* ``own_registration``, ``last_session``  the broker's registration, and that of its last process
* ``migration``       the metadata of a single broker, copied to ZooKeeper
* ``process_watch``   connections to other brokers, which detect the end of their processes
* ``topic_lookups``, ``missing_topics``  topics that are not known yet, and waits for leaders and deletions
* ``deliveries``      the controller's requests to brokers, over the network or to this broker
* ``controller_requests``  elections, reassignments, ISR changes and shutdowns on request to the controller
* ``alter_partition_manager``  ISR changes that leaders request from the controller
* ``notifications``, ``changed_configs``  changed configurations and ACLs
* ``shared_security`` ACLs and delegation tokens of a cluster, and changes of them by other brokers
* ``token_expiry``    removal of expired delegation tokens
* ``wire``            requests and answers as protobuf messages
"""
