"""State of a bucket between micro-batches: rows in a log of recent changes, and in pages that are read one by one.

* ``rows``       the rows of one store: what a batch may read of them, and how it leaves them
* ``pages``      which page a row belongs to, and how many there are
* ``chunks``     how rows are bytes, with a version
* ``variables``  where log and pages lie: Spark's state store, or memory
* ``hashing``    the hash of keys, the same for ever

What rows mean is up to the stores.
"""
