"""Writes of DataFrames to topics with ``format("millrace")``, exactly once by default.

``df.write`` and ``df.writeStream`` use it.

* ``options``   all options of a write, checked before anything is written
* ``columns``   DataFrame columns to record fields, by name and type
* ``identity``  identity of a write, by which it is committed once
* ``sending``   Arrow batches of a task to a producer
* ``clients``   connections shared by the tasks of a process, and those of the driver
* ``writer``    Spark's writer interfaces

docs/design/0017-spark-sink.md explains how a write is one transaction through every failure.
"""
