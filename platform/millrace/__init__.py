"""millrace: the log made for Spark.

What every part shares lives here, one concept to a package:

* ``millrace.errors``        the one error hierarchy, with Kafka's numeric codes
* ``millrace.records``       the record batch: Kafka's header, rows or Arrow columns as its body
* ``millrace.segments``      reading segment files and their indexes, for the broker, Spark and the tools
* ``millrace.payloads``      Avro, JSON and Protobuf in opaque topics, decoded to columns
* ``millrace.schemas``       typed topics: parsing, checking and evolving their Arrow schemas
* ``millrace.protocol``      the gRPC messages and their generated stubs
* ``millrace.config``        the one configuration loader, and what can be configured
* ``millrace.coordination``  metadata with ZooKeeper's semantics: the interface, and its embedded store
* ``millrace.clients``       producer, consumer and admin
* ``millrace.cli``           the frame of the ``millrace`` command

Nothing is imported here, so that ``import millrace`` costs nothing in a Spark worker.
"""
