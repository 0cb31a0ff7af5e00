"""Delay of SIGINT (Ctrl-C) and SIGTERM until work is complete.

Python runs the handler of a signal in the main thread, between any two steps, and the handler usually raises an
exception (``KeyboardInterrupt``, ``SystemExit``). Without a delay, a client could be left with half-done work that
nothing completes. Examples are a response of which a part is lost, or a batch that is neither queued nor in flight.
"""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import Any, Final, Self, TypeVar

Result = TypeVar("Result")

_delaying: Uninterrupted | None = None
"""The block of the main thread that delays signals now, so that blocks inside it need not."""

_SIGNALS: Final = (int(signal.SIGINT), int(signal.SIGTERM))
_quick: Final[Any] = sys.modules.get("_signal", signal)
"""Functions of ``signal`` in C. Those in Python look for enums first, which takes ten times as long."""


class Uninterrupted:
    """Block of work in which handlers of signals run only during ``wait``. It is for one use.

    Signals that arrive at other times are handled at the end of the block. Only the main thread handles signals, so
    that the block has no effect in other threads.
    """

    __slots__ = ("_arrived", "_handlers", "_may_handle")

    def __init__(self) -> None:
        self._handlers: dict[int, Any] = {}
        self._arrived: list[tuple[int, FrameType | None]] = []
        self._may_handle = False

    def __enter__(self) -> Self:
        global _delaying
        if _delaying is None and threading.get_ident() == threading.main_thread().ident:
            try:
                for number in _SIGNALS:
                    handler = _quick.getsignal(number)
                    if callable(handler):
                        self._handlers[number] = handler
                        _quick.signal(number, self._handle)
            except BaseException:  # by the handler of the second signal, which is not replaced yet
                self._restore()
                raise
            if self._handlers:
                _delaying = self
        return self

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self._may_handle:
            self._handlers[number](number, frame)
        else:
            self._arrived.append((number, frame))

    def wait(self, wait: Callable[[], Result]) -> Result:
        """Return the result of ``wait``, which handlers of signals may interrupt unless another block is around."""
        global _delaying
        if not self._handlers:
            return wait()
        _delaying, self._may_handle = None, True
        try:
            self._handle_arrived()
            return wait()
        finally:
            _delaying, self._may_handle = self, False

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        global _delaying
        if self._handlers:
            _delaying = None
            self._restore()
            self._handle_arrived()

    def _restore(self) -> None:
        try:
            for number, handler in self._handlers.items():
                if _quick.getsignal(number) == self._handle:  # else a handler has set another one
                    _quick.signal(number, handler)
        finally:
            self._may_handle = True  # in case the first handler prevented the restoration of the second

    def _handle_arrived(self) -> None:
        """Run the handlers in the order of the signals, each one also if an earlier one raises."""
        if self._arrived:
            number, frame = self._arrived.pop(0)
            try:
                self._handlers[number](number, frame)
            finally:
                self._handle_arrived()
