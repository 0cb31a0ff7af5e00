"""What ``send`` gives back: results that arrive when the broker has answered.

Lighter than ``concurrent.futures.Future``, of which each has a lock of its own: all futures of a producer share one
condition, so that a record costs one small object.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from functools import partial
from typing import Any, Generic, TypeVar, cast

from millrace.errors import RequestTimedOutError

Result = TypeVar("Result")
logger = logging.getLogger(__name__)
_UNSET: Any = object()


class SendFuture(Generic[Result]):
    """The outcome of a send. Thread safe."""

    __slots__ = ("_callbacks", "_condition", "_error", "_result")

    def __init__(self, condition: threading.Condition) -> None:
        self._condition = condition
        self._result: Result = _UNSET
        self._error: Exception | None = None
        self._callbacks: list[Callable[[Any], Any]] | None = None

    def done(self) -> bool:
        """Whether there is a result or an error."""
        return self._result is not _UNSET or self._error is not None

    def result(self, timeout: float | None = None) -> Result:
        """Wait for the result and return it; raises the error of the send.

        Raises ``RequestTimedOutError`` when nothing is known after ``timeout`` seconds; the send goes on.
        """
        error = self.exception(timeout)
        if error is not None:
            raise error
        return self._result

    def exception(self, timeout: float | None = None) -> Exception | None:
        """Wait for the outcome and return its error, ``None`` if it succeeded."""
        with self._condition:
            if not self._condition.wait_for(self.done, timeout):
                raise RequestTimedOutError(
                    f"the broker has not answered within {timeout} s; the records are still on their way"
                )
        return self._error

    def add_done_callback(self, callback: Callable[[SendFuture[Result]], Any]) -> None:
        """Call ``callback`` with this future once it is done, in the producer's own thread, or now if it is done.

        It must not block. What it raises is logged.
        """
        with self._condition:
            if not self.done():
                self._callbacks = [*(self._callbacks or ()), callback]
                return
        self._call(callback)

    def complete(self, result: Result | None = None, error: Exception | None = None) -> Callable[[], None] | None:
        """Set the outcome, holding the condition; the producer then notifies and calls what is returned, if anything.

        Only the first outcome counts.
        """
        if self.done():
            return None
        if error is not None:
            self._error = error
        else:
            self._result = cast(Result, result)
        callbacks, self._callbacks = self._callbacks, None
        if not callbacks:
            return None
        return partial(self._call_all, callbacks)

    def _call_all(self, callbacks: list[Callable[[Any], Any]]) -> None:
        for callback in callbacks:
            self._call(callback)

    def _call(self, callback: Callable[[SendFuture[Result]], Any]) -> None:
        try:
            callback(self)
        except Exception:
            # It is the caller's code: its failure must not stop the sender.
            logger.exception("a callback of a producer failed")
