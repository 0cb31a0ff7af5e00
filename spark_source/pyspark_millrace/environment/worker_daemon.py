"""PySpark's daemon of Python workers, but with workers that are ready sooner, and quiet where Spark hangs up on one.

Spark keeps workers for a minute after their last task, then ends them by closing the connection, and ends all of them
so when the program ends. A worker answers the end of its input with an error that nobody reads any more, and PySpark's
daemon prints that as the traceback of a ``BrokenPipeError``: in the log of a run in which nothing went wrong. What goes
wrong in a task is told over a connection that is still there, and is not touched by this.

Workers are forked, and each loads PySpark after that: from a zip file, whose modules are compiled anew every time,
0.6 s of a core. A worker is ended after a minute without a task, so a query now and then pays it again and again. Here
the daemon loads PySpark's worker and this package once, and the workers have them.

Before the daemon collects garbage, which it does after every task, what a worker has imported is frozen.

Spark starts it by ``spark.python.daemon.module``, as ``python -m <this module> <worker module>``.

Invariant: nothing that is loaded before the fork starts a thread, which a fork would not copy. pyarrow and numpy may
start some, so workers still load them themselves.
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
"""What every worker that reads or writes needs, and starts no thread."""

_pyspark_worker = daemon.worker


def worker(sock: socket.socket, authenticated: bool) -> int:
    """Run a task; gives its exit code, by which the daemon decides whether the worker is used again."""
    try:
        code: int = _pyspark_worker(sock, authenticated)
    except (BrokenPipeError, ConnectionResetError):
        return 1
    if code == 0:
        settle_worker()
    return code


def load_beforehand() -> None:
    """Load what the forked workers are to have."""
    for name in LOADED_BEFOREHAND:
        importlib.import_module(name)


if __name__ == "__main__":
    load_beforehand()
    daemon.worker = worker
    daemon.manager()
