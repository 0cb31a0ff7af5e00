"""Measurement of a coroutine's processor time.

The time is the sum over all steps of the coroutine in the event loop.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Generator
from types import TracebackType
from typing import Any, Final, TypeVar

_T = TypeVar("_T")


class MeasuredWork(Coroutine[Any, Any, _T], Generator[Any, Any, _T]):
    """Coroutine that runs another one and measures its processor time.

    Waits take no processor time.
    """

    def __init__(self, work: Coroutine[Any, Any, _T], thread_time: Callable[[], float]) -> None:
        self._work: Final = work
        self._thread_time: Final = thread_time
        self._done_s = 0.0
        self._began = thread_time()

    def spent_s(self) -> float:
        """Return the seconds of all steps so far, for a caller within a step."""
        return self._done_s + self._thread_time() - self._began

    def send(self, value: Any) -> Any:
        """Run the next step."""
        self._began = self._thread_time()
        try:
            return self._work.send(value)
        finally:
            self._done_s += self._thread_time() - self._began

    def throw(
        self,
        kind: type[BaseException] | BaseException,
        error: BaseException | object = None,
        trace: TracebackType | None = None,
    ) -> Any:
        """Run the next step with an error."""
        self._began = self._thread_time()
        try:
            return self._work.throw(kind if isinstance(kind, BaseException) else kind())
        finally:
            self._done_s += self._thread_time() - self._began

    def close(self) -> None:
        """End the work."""
        self._work.close()

    def __await__(self) -> Generator[Any, Any, _T]:
        """Return the steps."""
        return self
