"""Futures of sends, which complete when the broker has answered.

They are lighter than ``concurrent.futures.Future``, where each future has its own lock. All futures of a producer
share one condition, and a record's future is only its place in its chunk.
"""

from __future__ import annotations

import logging
import threading
import time
from abc import abstractmethod
from collections.abc import Callable
from typing import Any, Generic, Self, TypeVar, cast

from millrace.clients.transport import Helper
from millrace.errors import RequestTimedOutError

Result = TypeVar("Result")
logger = logging.getLogger(__name__)
_UNSET: Any = object()
_LONG_S = float("inf")


def call_safely(callback: Callable[..., Any], *arguments: Any) -> None:
    """Call a callback of the caller; its exception is logged because it must not stop the sender."""
    try:
        callback(*arguments)
    except Exception:
        logger.exception("a callback of a producer failed")


class Outcomes(threading.Condition):
    """Condition of all futures of a producer, notified when some are done.

    A waiting thread receives the responses itself (``helper``) as long as no callback of the caller is registered.
    With callbacks, a thread of the producer receives them, because the waiting thread may hold a lock that a callback
    needs.
    """

    def __init__(self, helper: Helper | None = None) -> None:
        self.lock = threading.RLock()
        """The condition's own lock, for code that does not wait; entering the condition takes several times as long."""
        super().__init__(self.lock)
        self._helper = helper
        self._calls = False

    def will_call(self) -> None:
        """Note that callbacks of the caller exist from now on."""
        if not self._calls:
            self._calls = True
            if self._helper is not None:
                self._helper.wake()

    def notify_all(self) -> None:
        """Wake all waiting threads, also those that receive responses."""
        super().notify_all()
        if self._helper is not None:
            self._helper.wake()

    def wait_until(self, is_done: Callable[[], bool], timeout_s: float | None) -> bool:
        """Wait for a change that ``notify_all`` follows; returns false after ``timeout_s``."""
        deadline = _LONG_S if timeout_s is None else time.monotonic() + timeout_s
        while self._helper is not None and not self._calls and not is_done():
            if not self._helper.help(lambda: self._calls or is_done(), deadline - time.monotonic()):
                break
            if time.monotonic() >= deadline:
                return is_done()
        with self:
            return self.wait_for(is_done, None if timeout_s is None else max(deadline - time.monotonic(), 0))


class SendFuture(Generic[Result]):
    """Outcome of a send (Kafka's ``Future<RecordMetadata>``). Thread safe."""

    __slots__ = ()

    @abstractmethod
    def done(self) -> bool:
        """Return whether there is a result or an error."""

    @abstractmethod
    def add_done_callback(self, callback: Callable[[Self], Any]) -> None:
        """Call ``callback`` with this future once it is done, in the producer's own thread, or now if it is done.

        Callbacks of records of one partition are called in the order of the records. They must not block, because the
        producer sends nothing to the partition until they return. Their exceptions are logged.
        """

    @abstractmethod
    def _get_condition(self) -> Outcomes:
        """Return the condition that is notified when futures are done."""

    @abstractmethod
    def _outcome(self) -> tuple[Any, Exception | None]:
        """Return result and error of a future that is done."""

    def result(self, timeout: float | None = None) -> Result:
        """Wait for the result and return it; raises the error of the send.

        Raises ``RequestTimedOutError`` if the outcome is unknown after ``timeout`` seconds; the send continues.
        """
        self._wait(timeout)
        result, error = self._outcome()
        if error is not None:
            raise error
        return cast(Result, result)

    def exception(self, timeout: float | None = None) -> Exception | None:
        """Wait for the outcome and return its error, ``None`` if it succeeded."""
        self._wait(timeout)
        return self._outcome()[1]

    def _wait(self, timeout: float | None) -> None:
        if self.done():
            return
        if not self._get_condition().wait_until(self.done, timeout):
            raise RequestTimedOutError(
                f"the broker has not answered within {timeout} s; the producer continues to send the records"
            )


class ValueFuture(SendFuture[Result]):
    """Future whose outcome is set, for a table. The first outcome counts."""

    __slots__ = ("_callbacks", "_condition", "_error", "_result")

    def __init__(self, condition: Outcomes) -> None:
        self._condition = condition
        self._result: Any = _UNSET
        self._error: Exception | None = None
        self._callbacks: list[Callable[[Any], Any]] = []

    def done(self) -> bool:
        """Return whether there is a result or an error."""
        return self._result is not _UNSET or self._error is not None

    def add_done_callback(self, callback: Callable[[Self], Any]) -> None:
        """Call ``callback`` with this future once it is done, in the producer's own thread, or now if it is done."""
        with self._condition:
            if not self.done():
                self._condition.will_call()
                self._callbacks.append(callback)
                return
        call_safely(callback, self)

    def complete(self, result: Result | None = None, error: Exception | None = None) -> None:
        """Set the outcome, wake the waiting threads and call the callbacks."""
        with self._condition:
            if self.done():
                return
            if error is not None:
                self._error = error
            else:
                self._result = result
            callbacks, self._callbacks = self._callbacks, []
            self._condition.notify_all()
        for callback in callbacks:
            call_safely(callback, self)

    def _get_condition(self) -> Outcomes:
        return self._condition

    def _outcome(self) -> tuple[Any, Exception | None]:
        return self._result, self._error
