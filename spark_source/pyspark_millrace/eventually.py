"""Value that a thread computes while the caller does other work.

Spark starts the planning processes of a query's sources one after the other, each when the previous one has its reader.
The imports of a reader take as long as the start of Python. So a reader is returned at once and completed while the
next process starts.

Invariant: the value is computed once. Every caller gets that value, or the error of its computation.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from threading import Thread
from typing import Generic, TypeVar

Value = TypeVar("Value")


class Eventually(Generic[Value]):
    """Result of ``make``. Pickling waits for the value and pickles it alone."""

    def __init__(self, make: Callable[[], Value]) -> None:
        """Start the computation."""
        self._future: Future[Value] = Future()
        Thread(target=_fill, args=(self._future, make), name="millrace-eventually", daemon=True).start()

    def get(self) -> Value:
        """Wait for the value and return it. Raises the error of the computation."""
        return self._future.result()

    def __getstate__(self) -> tuple[Value]:
        return (self.get(),)

    def __setstate__(self, state: tuple[Value]) -> None:
        # Every task unpickles one, and needs no thread.
        self._future = Future()
        self._future.set_result(*state)


def _fill(future: Future[Value], make: Callable[[], Value]) -> None:
    try:
        future.set_result(make())
    except BaseException as error:  # noqa: BLE001 - the future raises it to its reader
        future.set_exception(error)
