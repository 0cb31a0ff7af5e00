"""millrace: the log made for Spark.

This package holds the common parts, one concept per subpackage:

* ``millrace.errors``        the error hierarchy, with Kafka's numeric codes
* ``millrace.records``       the record batch: Kafka's header, rows or Arrow columns as its body
* ``millrace.segments``      reading segment files and their indexes, for the broker, Spark and the tools
* ``millrace.payloads``      Avro, JSON and Protobuf in opaque topics, decoded to columns
* ``millrace.schemas``       typed topics: parsing, checking and evolving their Arrow schemas
* ``millrace.protocol``      the gRPC messages and their generated stubs
* ``millrace.config``        the configuration loader, and the options
* ``millrace.coordination``  metadata with ZooKeeper's semantics: the interface, and its embedded store
* ``millrace.clients``       producer, consumer and admin
* ``millrace.cli``           the ``millrace`` command
* ``millrace.kafka_protocol``, ``millrace.coordinator_records``  Kafka's messages, and the coordinators' records
* ``millrace.consumer_protocol``  subscriptions and assignments of group members
* ``millrace.security``      TLS, SASL and key stores, for clients and brokers
* ``millrace.acls``, ``millrace.quotas``  ACLs and client quotas as data
* ``millrace.migration``     topics and offsets copied from Kafka

Small modules: ``ids``, ``partitions``, ``topic_names``, ``java_strings`` (their order and hash), ``processors`` (their
number), ``spinning`` (busy-waiting), ``interrupts`` (delayed signals).

This module loads nothing, so that ``import millrace`` costs nothing in a Spark worker.
"""

import os

# gRPC reads it when it is loaded (millrace.protocol.grpc_forks says why). A value that the user set stays.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")
