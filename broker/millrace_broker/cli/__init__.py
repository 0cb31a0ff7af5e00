"""Broker commands of the ``millrace`` command line, a module per command.

* ``broker``         runs one broker
* ``cluster``        runs several brokers with a ZooKeeper (``local_zookeeper``), or describes a cluster
* ``reassign``       moves replicas, by plans in the format of Kafka's tool (``reassignment_plans``)
* ``elect_leaders``  preferred and unclean leader elections
* ``log``            dumps log files; ``log_check`` verifies, repairs and converts them; ``log_options`` has the options
* ``acls``           shows, adds and removes ACLs (with ``authorizer_settings`` for what else decides)
* ``security``       certificates and users of a cluster, in a directory (``security_directory``, ``whole_files``)
"""
