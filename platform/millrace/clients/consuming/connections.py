"""Connections whose calls in the consumer's thread end at a wake-up or close."""

from __future__ import annotations

import time

from millrace.clients.connections import Connections, Request, Response
from millrace.clients.consuming.signal import Signal
from millrace.clients.transport import UnaryCall
from millrace.config.client import ClientConfig


class ConsumerConnections(Connections):
    """Connections of a consumer. Calls in its background thread are plain; calls in the caller's can be interrupted."""

    def __init__(self, config: ClientConfig, signal: Signal) -> None:
        super().__init__(config, on_fork=signal.abandon)
        self._signal = signal
        signal.help_with(self.helper)

    def _send(self, call: UnaryCall[Request, Response], request: Request, target: str, timeout_s: float) -> Response:
        if not self._signal.is_mine:
            return super()._send(call, request, target, timeout_s)
        pending = self.begin(
            call,
            request,
            address=target,
            timeout_s=timeout_s,
            on_done=lambda response, error: self._signal.ring(),
            cancellable=True,
        )
        try:
            while not pending.is_done:
                serial = self._signal.serial
                if not pending.is_done:
                    self._signal.wait(serial, timeout_s)
        except BaseException:
            pending.cancel()
            raise
        return pending.result()

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
