"""Connections whose calls, made in the consumer's own thread, are ended by a wake-up or by closing."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

import grpc

from millrace.clients.connections import Connections, Request, Response
from millrace.clients.consuming.signal import Signal
from millrace.config.client import ClientConfig
from millrace.protocol import millrace_pb2 as pb

if TYPE_CHECKING:
    from millrace.protocol.millrace_pb2_grpc import BrokerStub

_FETCH: Final = "/millrace.v1.Broker/Fetch"


class ConsumerConnections(Connections):
    """A consumer's channels. In its background thread calls are plain; in its caller's they can be interrupted."""

    def __init__(self, config: ClientConfig, signal: Signal) -> None:
        super().__init__(config)
        self._signal = signal
        self._raw_lock = threading.Lock()
        self._raw_fetches: dict[grpc.Channel, grpc.UnaryUnaryMultiCallable[pb.FetchRequest, bytes]] = {}

    def _send(
        self,
        method: Callable[[BrokerStub], grpc.UnaryUnaryMultiCallable[Request, Response]],
        request: Request,
        target: str,
        timeout_s: float,
    ) -> Response:
        if not self._signal.is_mine:
            return super()._send(method, request, target, timeout_s)
        call = method(self.stub(target)).future(request, timeout=timeout_s)
        call.add_done_callback(lambda _: self._signal.ring())
        try:
            while not call.done():
                serial = self._signal.serial
                if not call.done():
                    self._signal.wait(serial, timeout_s)
        except BaseException:
            call.cancel()  # type: ignore[no-untyped-call]
            raise
        try:
            return call.result()
        except grpc.FutureCancelledError:
            self.check_open()
            raise

    def raw_fetch(self, address: str) -> grpc.UnaryUnaryMultiCallable[pb.FetchRequest, bytes]:
        """The call Fetch whose response is left as it came: see ``millrace.protocol.fetch_response``."""
        channel = self.channel(address)
        with self._raw_lock:
            method = self._raw_fetches.get(channel)
            if method is None:
                method = self._raw_fetches[channel] = channel.unary_unary(
                    _FETCH, request_serializer=pb.FetchRequest.SerializeToString, response_deserializer=bytes
                )
            return method

    def wait(self, seconds: float) -> None:
        """Wait before a retry; raises ``ClientClosedError`` when closed meanwhile, ``WakeupError``."""
        if not self._signal.is_mine:
            super().wait(seconds)
            return
        deadline = time.monotonic() + seconds
        while (left := deadline - time.monotonic()) > 0:
            self.check_open()
            self._signal.wait(self._signal.serial, left)

    def close(self) -> None:
        """Close all channels; whoever waits is told."""
        super().close()
        self._signal.ring()
