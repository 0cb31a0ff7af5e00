"""Commands that belong to the Spark source: what they do works without Spark.

* ``offsets``  show and reset where a query is
* ``audit``    prove what a table holds of what a query read
"""
