"""The broker's part of the ``millrace`` command, a module for each command.

* ``broker``         runs one
* ``cluster``        runs several with a ZooKeeper (``local_zookeeper``), describes one
* ``reassign``       moves replicas, by plans as those of Kafka's tool (``reassignment_plans``)
* ``elect_leaders``  preferred and unclean elections
* ``log``            looks into files; ``log_check`` verifies, mends, converts them; ``log_options`` is what they take
"""
