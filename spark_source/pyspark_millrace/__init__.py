"""The PySpark data source ``format("millrace")``: topics as tables, batch and streaming.

Spark finds this package by its name (``pyspark_*``) in every session that uses a Python source, so importing it
loads nothing but ``source``; what needs pyarrow, grpc or a broker is imported when a query is planned or read.

* ``source``         the ``DataSource`` that Spark creates: options in, schema, readers and writers out
* ``batch, stream``  Spark's reader interfaces over ``options``, ``planning`` and ``reading``
* ``columns``        the columns that topics offer, and their types in Spark
* ``options``        the options of a read, checked
* ``filters``        conditions on records, given as an option or pushed down
* ``decoding``       values in registered formats to columns
* ``sink``           writing to topics, exactly once
* ``delta``          tables from topics, and topics from tables
* ``monitor``        a driver's queries told to groups and Prometheus; ``origin`` says whose offsets they are
* ``checkpoints``    a query's checkpoint without Spark: shown, locked, reset
* ``audit``          proof that a table holds what a query read; ``cli`` has the commands
* ``environment``    ``session()``: Spark made ready, with what it needs of the machine
* ``job``            the frame of all jobs: command line, progress, signals, exit codes
* ``spark_errors``   the error of ours in what Spark reports
* ``eventually``     values that are made in a thread, while Spark does something else
* ``interruption``   a query that is stopped in the middle of a micro-batch
* ``worker_garbage`` workers that do not search what they imported for garbage
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pyspark_millrace.source import DefaultSource

if TYPE_CHECKING:
    from pyspark_millrace.environment.session import session, spark_submit_command

__all__ = ["DefaultSource", "session", "spark_submit_command"]

_LAZY = {"session", "spark_submit_command"}


def __getattr__(name: str) -> Any:
    # PEP 562: the session helpers are for programs that start Spark; Spark's own workers never need them.
    if name in _LAZY:
        from pyspark_millrace.environment import session as spark_session

        return getattr(spark_session, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
