"""SIGTERM and Ctrl-C as stop requests, in Python and in the JVM.

Under spark-submit the JVM receives the signal, and Python is its child and receives nothing. By default the JVM ends at
once, in the middle of running work, with exit code 143 or 130.
"""

from __future__ import annotations

import signal
from threading import Event
from types import FrameType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark import SparkContext


def stop_on_signals(stopping: Event) -> None:
    """Set ``stopping`` on signals to this process."""

    def stop(number: int, frame: FrameType | None) -> None:
        stopping.set()

    signal.signal(signal.SIGTERM, stop)
    signal.signal(signal.SIGINT, stop)


def stop_on_signals_of_jvm(context: SparkContext, stopping: Event) -> None:
    """Set ``stopping`` on signals to the JVM, which then runs until the job has ended."""
    from pyspark.java_gateway import ensure_callback_server_started

    java: Any = context._jvm
    ensure_callback_server_started(context._gateway)
    for name in ("TERM", "INT"):
        java.sun.misc.Signal.handle(java.sun.misc.Signal(name), _Handler(stopping))


class _Handler:
    """Java signal handler."""

    def __init__(self, stopping: Event) -> None:
        self._stopping = stopping

    def handle(self, received: Any) -> None:
        self._stopping.set()

    class Java:
        implements = ("sun.misc.SignalHandler",)
