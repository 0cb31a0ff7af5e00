"""What a driver tells about its streaming queries: their progress to groups, their metrics to Prometheus.

``monitor(spark)`` installs it; ``session()`` does so by itself. It listens to Spark's progress reports, which come as
soon as a batch is done, and to what tasks report (``pyspark_millrace.reading.reports``).

* ``service``       ``monitor()``: the listener, one for each session, and what all of a process share
* ``progress``      Spark's progress reports, as far as they are about our sources
* ``group_commits`` offsets to groups, in the background
* ``measurements``  what is known of each query
* ``exposition``    that, and the lag as it is now, in Prometheus' form
* ``outlets``       HTTP, text file, push gateway
"""

from pyspark_millrace.monitor.service import Monitor, monitor

__all__ = ["Monitor", "monitor"]
