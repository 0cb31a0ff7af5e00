"""Checkpoints of streaming queries, read and reset without Spark.

* ``query_log``  what Spark keeps of a query: its id, the offsets of each batch, which batches are done
* ``reset``      where a query goes on reading instead, as a batch of its own at the end of that log
* ``running``    a lock by which a query of ours shows that it runs
"""
