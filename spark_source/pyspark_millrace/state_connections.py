"""The connections of stateful tasks to Spark's state store, which Spark 4.2.0 forgets to close (SPARK-58932).

For each task Spark's JVM accepts a connection from the Python worker. When the worker says that it has closed, or hangs
up, the thread that serves it ends and leaves the connection open for ever: a query of small micro-batches took 50 ms
longer for each after three minutes, by the open files that every forked command has to close, and in some hours the
JVM has no file left to open. A thread that is still listening when its task ends is interrupted, and that closes the
connection. So a worker says nothing at its end, and hangs up some tasks later.
"""

from __future__ import annotations

from collections import deque
from typing import Any, Final

_TASKS: Final = 32
"""A worker may be given others' tasks before Spark has ended its last one: it writes that one's state down first."""

_left_open: Final[deque[Any]] = deque(maxlen=_TASKS)


def leave_open(handle: Any) -> None:
    """Leave the connection of a processor's handle to Spark; for the end of a task, in the processor's ``close``."""
    client = handle._statefulProcessorApiClient
    client.set_handle_state = lambda state: setattr(client, "handle_state", state)
    _left_open.append(client)
