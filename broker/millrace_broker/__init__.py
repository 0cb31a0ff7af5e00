"""The broker, which keeps topics as logs and answers clients' calls.

* ``server``, ``opening``, ``broker``  the broker with its listeners, its start, and the record of its parts
* ``listeners``, ``kafka_api``, ``api``  the ways in, the calls of Kafka, and the calls of millrace
* ``groups``, ``share_groups``, ``transactions``, ``coordinators``  the coordinators, and their common base
* ``cluster``, ``controller``, ``decisions``  a broker's place in its cluster, the controller, and its decisions
* ``replication``  replicas of partitions
* ``log``, ``log_tools``  partitions as segment files, and tools that read them without a broker
* ``metadata``, ``config``  topics and configurations, and the configuration in force
* ``security``, ``audit``, ``quotas``  access control, the audit of its decisions, and quotas
* ``purgatory``, ``runtime``, ``network``, ``metrics``  delayed operations, threads, calls to brokers, Prometheus
* ``cli``, ``testing``  commands, and a broker inside another program

``broker/ARCHITECTURE.md`` follows a record through them.
"""
