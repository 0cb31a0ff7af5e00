"""A value that is made in a thread, while its future user does something else.

Spark starts the planning processes of a query's sources one after the other, each when the one before it has its
reader. What a reader needs takes as long to import as Python takes to start: so it says that it is there, and is
made while the next process starts.

Invariant: the value is made once; whoever asks gets that one, or the very error that making it raised.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from threading import Thread
from typing import Generic, TypeVar

Value = TypeVar("Value")


class Eventually(Generic[Value]):
    """What ``make`` gives. Pickled it is the value alone, which pickling waits for."""

    def __init__(self, make: Callable[[], Value]) -> None:
        """Begin to make it."""
        self._future: Future[Value] = Future()
        Thread(target=_fill, args=(self._future, make), name="millrace-eventually", daemon=True).start()

    def get(self) -> Value:
        """The value, waited for. Raises what making it raised."""
        return self._future.result()

    def __getstate__(self) -> tuple[Value]:
        return (self.get(),)

    def __setstate__(self, state: tuple[Value]) -> None:
        # Every task unpickles one: there is nothing left to do that would need a thread.
        self._future = Future()
        self._future.set_result(*state)


def _fill(future: Future[Value], make: Callable[[], Value]) -> None:
    try:
        future.set_result(make())
    except BaseException as error:  # noqa: BLE001 - raised where it is asked for
        future.set_exception(error)
