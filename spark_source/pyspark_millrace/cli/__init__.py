"""Commands of the Spark source, which run without Spark.

* ``offsets``  show and reset the offsets of a query
* ``audit``    prove that a table holds the records that a query read
* ``spark``    run programs under spark-submit
"""
