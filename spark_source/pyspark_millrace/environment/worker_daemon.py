"""PySpark's daemon of Python workers, with faster workers and without false alarms.

Spark keeps a worker for a minute after its last task, and then closes the connection to it. At the end of the program
it closes all connections. A worker reports the end of its input as an error on that closed connection. PySpark's daemon
then prints a traceback of a ``BrokenPipeError`` although the run succeeded. This daemon ends such a worker silently. An
error in a task is sent over a connection that is still open, so it is reported as before.

Workers are forked, and each one loads PySpark afterwards. From a zip file, whose modules are compiled every time, that
takes 0.6 s of a core. Because idle workers end after a minute, an infrequent query pays it again and again. This daemon
loads PySpark's worker and this package once before the fork, and the workers inherit them.

The daemon collects garbage after every task. Before that, modules that a worker has imported are frozen.

Spark starts the daemon by ``spark.python.daemon.module``, as ``python -m <this module> <worker module>``.

Invariant: no module that is loaded before the fork starts a thread, because a fork does not copy threads. Workers load
pyarrow and numpy themselves, because these may start threads.
"""

from __future__ import annotations

import importlib
import socket
from typing import Final

from pyspark import daemon

from pyspark_millrace.worker_garbage import settle_worker

LOADED_BEFOREHAND: Final = (
    "pyspark.worker",
    "pyspark.sql.conversion",
    "pyspark_millrace.batch",
    "pyspark_millrace.sink.writer",
)
"""Modules that every reading or writing worker needs, and that start no thread."""

_pyspark_worker = daemon.worker


def worker(sock: socket.socket, authenticated: bool) -> int:
    """Run tasks; returns the exit code, by which the daemon decides whether to reuse the worker."""
    try:
        code: int = _pyspark_worker(sock, authenticated)
    except (BrokenPipeError, ConnectionResetError):
        return 1
    if code == 0:
        settle_worker()
    return code


def load_beforehand() -> None:
    """Load the modules for the forked workers."""
    for name in LOADED_BEFOREHAND:
        importlib.import_module(name)


if __name__ == "__main__":
    load_beforehand()
    daemon.worker = worker
    daemon.manager()
