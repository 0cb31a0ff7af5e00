"""The PySpark data source ``format("millrace")``: topics as tables, batch and streaming.

Spark finds this package by its name (``pyspark_*``) in every session that uses a Python source. So an import loads only
``source``. Modules that need pyarrow, grpc or a broker are imported when a query is planned or read.

* ``source``         the ``DataSource`` that Spark creates: options in; schema, readers and writers out
* ``batch, stream``  Spark's reader interfaces over ``options``, ``planning`` and ``reading``
* ``columns``        the columns of topics, and their types in Spark
* ``options``        the options of a read, checked
* ``filters``        conditions on records, from an option or pushed down
* ``decoding``       payloads in registered formats to columns
* ``sink``           writes to topics, exactly once
* ``delta``          tables from topics, and topics from tables
* ``monitor``        group commits and Prometheus metrics of queries; ``origin`` names the brokers of offsets
* ``checkpoints``    a query's checkpoint without Spark: show, lock, reset
* ``audit``          proof that a table holds the records that a query read; ``cli`` has the commands
* ``environment``    ``session()``: a ready Spark session with its requirements on the machine
* ``job``            the frame of all jobs: command line, progress, signals, exit codes
* ``spark_errors``   the millrace error within Spark's report
* ``eventually``     values that a thread computes while Spark does other work
* ``interruption``   a query that is stopped within a micro-batch
* ``worker_garbage`` cheap garbage collection in workers
* ``transform``      a Python function that tasks apply before rows enter the JVM
* ``kept_clients``   clients of a worker process, across tasks
* ``late_processor``, ``state_connections``  stateful processors: loaded late, and without Spark's leak
* ``session_settings``, ``spark_connect``, ``partition_key``  small parts
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pyspark_millrace.source import DefaultSource

if TYPE_CHECKING:
    from pyspark_millrace.environment.session import session, spark_submit_command

__all__ = ["DefaultSource", "session", "spark_submit_command"]

_LAZY = {"session", "spark_submit_command"}


def __getattr__(name: str) -> Any:
    # PEP 562: only programs that start Spark use the session helpers; Spark's workers never need them.
    if name in _LAZY:
        from pyspark_millrace.environment import session as spark_session

        return getattr(spark_session, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
