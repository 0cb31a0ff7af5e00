"""PySpark's daemon of Python workers, but quiet where Spark hangs up on one.

Spark keeps workers for a minute after their last task, then ends them by closing the connection, and ends all of them
so when the program ends. A worker answers the end of its input with an error that nobody reads any more, and PySpark's
daemon prints that as the traceback of a ``BrokenPipeError``: in the log of a run in which nothing went wrong. What goes
wrong in a task is told over a connection that is still there, and is not touched by this.

Spark starts it by ``spark.python.daemon.module``, as ``python -m pyspark_millrace.worker_daemon <worker module>``, and
forks workers from it: it must load nothing that starts threads.
"""

from __future__ import annotations

import socket

from pyspark import daemon

_pyspark_worker = daemon.worker


def worker(sock: socket.socket, authenticated: bool) -> int:
    """Run a task; gives its exit code, by which the daemon decides whether the worker is used again."""
    try:
        code: int = _pyspark_worker(sock, authenticated)
    except (BrokenPipeError, ConnectionResetError):
        return 1
    return code


if __name__ == "__main__":
    daemon.worker = worker
    daemon.manager()
