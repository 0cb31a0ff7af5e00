"""Connections of a consumer's thread.

A wake-up or the close of the consumer ends their calls.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

from millrace.clients.connections import Connections, Notice, Request, Response
from millrace.clients.signal import Signal
from millrace.clients.transport import UnaryCall
from millrace.config.client import ClientConfig
from millrace.errors import MillraceError

_LONG_S: Final = float("inf")


class _InterruptibleNotice(Notice):
    """Wait of a consumer's caller for the ends of calls.

    The wait raises ``WakeupError`` after a wake-up.
    """

    def __init__(self, signal: Signal) -> None:
        super().__init__()
        self._signal = signal

    def give(self, response: object, error: MillraceError | None) -> None:
        """Notify the caller."""
        self._signal.ring()

    def wait(self, is_over: Callable[[], bool], timeout_s: float | None) -> None:
        """Wait as ``Notice`` does. Raises ``WakeupError``."""
        deadline = _LONG_S if timeout_s is None else time.monotonic() + timeout_s
        while not is_over() and (left_s := deadline - time.monotonic()) > 0:
            serial = self._signal.serial
            if not is_over():
                self._signal.wait(serial, left_s)


class ConsumerConnections(Connections):
    """Connections of a consumer. Calls in its background thread are plain; calls in the caller's can be interrupted."""

    def __init__(self, config: ClientConfig, signal: Signal) -> None:
        super().__init__(config, on_fork=signal.abandon)
        self._signal = signal
        signal.help_with(self.helper)

    def _send(self, call: UnaryCall[Request, Response], request: Request, target: str, timeout_s: float) -> Response:
        if not self._signal.is_mine:
            return super()._send(call, request, target, timeout_s)
        notice = self.notice()
        pending = self.begin(call, request, address=target, timeout_s=timeout_s, on_done=notice.give, cancellable=True)
        try:
            notice.wait(lambda: pending.is_done, None)
        except BaseException:
            pending.cancel()
            raise
        return pending.result()

    def notice(self) -> Notice:
        """Return a notice whose wait ends at a wake-up, in the caller's thread."""
        return _InterruptibleNotice(self._signal) if self._signal.is_mine else super().notice()

    def wait(self, seconds: float) -> None:
        """Wait before a retry; raises ``ClientClosedError`` if closed meanwhile, ``WakeupError``."""
        if not self._signal.is_mine:
            super().wait(seconds)
            return
        deadline = time.monotonic() + seconds
        while (left := deadline - time.monotonic()) > 0:
            self.check_open()
            self._signal.wait(self._signal.serial, left)

    def close(self) -> None:
        """Close all connections and wake waiting threads."""
        super().close()
        self._signal.ring()
