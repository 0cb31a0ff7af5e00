"""The PySpark data source ``format("millrace")``: topics as tables, batch and streaming.

Spark finds this package by its name (``pyspark_*``) in every session that uses a Python source, so importing it
loads nothing but ``source``; what needs pyarrow, grpc or a broker is imported when a query is planned or read.

* ``source``         the ``DataSource`` that Spark creates: options in, schema and readers out
* ``options``        every option, checked before anything starts
* ``positions``      where a read starts and ends, as the options say it
* ``offsets``        the stream's offsets as Spark's checkpoint keeps them; what counts as lost data
* ``limits, backlog, admission``  what a stream has not read, and how much of it goes into the next micro-batch
* ``topics``         the one place that asks the broker: topics, schemas, offsets, extents
* ``planning``       ranges of offsets to splits of about equal bytes
* ``columns``        topic columns and metadata columns to Spark's schema
* ``reading``        a split to Arrow batches, from mapped segment files or over gRPC
* ``pacing``         how fast the tasks of a machine read together, where that is limited
* ``batch, stream``  Spark's reader interfaces over these
* ``sink``           writing to topics, exactly once
* ``spark_session``  ``session()``: a ready Spark session with Delta
* ``delta_jars, java_runtime, checkpoint_files``  what a session needs of its environment
* ``monitor``        a driver's queries told to groups and Prometheus; ``origin``, ``read_reports`` are its sources
* ``checkpoints``    a query's checkpoint without Spark: shown, locked, reset
* ``audit``          proof that a table holds what a query read; ``cli`` has the commands
* ``spark_errors, error_display``  our sentence in what Spark reports, found and shown
* ``worker_daemon``  Spark's daemon of Python workers without its false alarms
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pyspark_millrace.source import DefaultSource

if TYPE_CHECKING:
    from pyspark_millrace.spark_session import session, spark_submit_command

__all__ = ["DefaultSource", "session", "spark_submit_command"]

_LAZY = {"session", "spark_submit_command"}


def __getattr__(name: str) -> Any:
    # PEP 562: the session helpers are for programs that start Spark; Spark's own workers never need them.
    if name in _LAZY:
        from pyspark_millrace import spark_session

        return getattr(spark_session, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
