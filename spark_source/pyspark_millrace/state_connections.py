"""Workaround for connections to Spark's state store that Spark 4.2.0 leaks (SPARK-58932).

For each stateful task Spark's JVM accepts a connection from the Python worker. When the worker closes it or reports its
end, the serving thread ends but leaves the connection open. A query of small micro-batches was 50 ms slower per
micro-batch after three minutes, because every forked command has to close the open files. After some hours the JVM has
no file descriptor left. If the thread is still listening when its task ends, Spark interrupts it, and that closes the
connection. So a worker does not report its end, and closes the connection some tasks later.
"""

from __future__ import annotations

from collections import deque
from typing import Any, Final

_TASKS: Final = 32
"""Spark may give a worker the next tasks before it has ended the last one, which must still write its state."""

_left_open: Final[deque[Any]] = deque(maxlen=_TASKS)


def leave_open(handle: Any) -> None:
    """Leave the connection of a processor's handle open. Call it in the processor's ``close``, at the end of a task."""
    client = handle._statefulProcessorApiClient
    client.set_handle_state = lambda state: setattr(client, "handle_state", state)
    _left_open.append(client)
