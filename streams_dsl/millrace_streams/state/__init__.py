"""State of a bucket: a log of recent changes over pages.

Pages are read one by one.

* ``rows``       the rows of one store: reads of a batch, and the save after it
* ``pages``      assignment of rows to pages, and their number
* ``chunks``     encoding of rows as bytes, with a version
* ``variables``  storage of log and pages: Spark's state store, or memory
* ``hashing``    the permanent hash of keys

The stores define the meaning of rows.
"""
