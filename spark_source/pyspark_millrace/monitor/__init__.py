"""Monitoring of streaming queries on the driver: offset commits and Prometheus metrics.

``monitor(spark)`` installs it; ``session()`` does so by default. It receives Spark's progress reports after each batch,
and the reports of tasks (``pyspark_millrace.reading.reports``).

* ``monitor``       ``monitor()``: a listener per session, and the state of the process
* ``progress``      Spark's progress reports, reduced to millrace sources
* ``group_commits`` offset commits to groups, in the background
* ``measurements``  totals of each query
* ``lags``          the current lag, requested on demand
* ``exposition``    the totals and the current lag in Prometheus' form
* ``outlets``       HTTP, text file, push gateway
"""

from pyspark_millrace.monitor.monitor import Monitor, monitor

__all__ = ["Monitor", "monitor"]
