"""Checkpoints of streaming queries, read and reset without Spark.

* ``query_log``  Spark's log of a query: its id, the offsets of each batch, the finished batches
* ``reset``      new offsets for a query, as an extra batch at the end of that log
* ``running``    a lock that shows that a query runs
"""
