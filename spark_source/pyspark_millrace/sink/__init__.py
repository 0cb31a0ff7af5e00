"""Writing DataFrames to topics: ``df.write`` and ``writeStream`` with ``format("millrace")``, exactly once by default.

* ``options``   every option, checked before anything is written
* ``columns``   what a DataFrame's columns are to a record, by their names and types
* ``identity``  as which write of which query a task's records count
* ``sending``   Arrow batches of a task to a producer
* ``clients``   the connections that the tasks of a process share, and those of the driver
* ``writer``    Spark's writer interfaces over these

How a write is one transaction, whatever dies on the way: docs/design/0017-spark-sink.md.
"""
