"""Connections to brokers, and the one way in which calls are made, timed and retried.

Invariants: one channel per address, made when first needed, shared by all threads of a client, closed with it. A call
that changes something is sent again only when it is certain that the broker never got it.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, TypeVar

import grpc

from millrace.clients.calling import CallThreads
from millrace.config.client import ClientConfig, ConsumerConfig
from millrace.errors import (
    BrokerUnavailableError,
    ClientClosedError,
    MillraceError,
    NotCoordinatorError,
    NotLeaderError,
    UnknownOutcomeError,
)
from millrace.protocol.millrace_pb2_grpc import BrokerStub
from millrace.protocol.status import error_from_rpc

if TYPE_CHECKING:
    Method = grpc.UnaryUnaryMultiCallable

Request = TypeVar("Request")
Response = TypeVar("Response")

_MESSAGE_OVERHEAD_BYTES: Final = 64 * 2**20
"""What a response may exceed ``fetch.max.bytes`` by: its first batch is sent whatever its size."""
_KEEPALIVE_MS: Final = 300_000
"""gRPC servers end connections that ping more often than this."""


def backoff_s(config: ClientConfig, attempt: int) -> float:
    """How long to wait before retry number ``attempt`` (from 0): exponential with 20 % jitter (KIP-580), in seconds."""
    wait_ms = min(config.retry_backoff_ms * (1 << min(attempt, 30)), config.retry_backoff_max_ms)
    return wait_ms / 1000 * random.uniform(0.8, 1.2)


class Connections:
    """The channels of one client. Thread safe."""

    def __init__(self, config: ClientConfig) -> None:
        self._config = config
        self._lock = threading.Lock()
        self._channels: dict[str, grpc.Channel] = {}
        self._stubs: dict[str, BrokerStub] = {}
        self._closed = threading.Event()
        self._threads = CallThreads("millrace-call")
        self._preferred = 0

    @property
    def config(self) -> ClientConfig:
        """The client's configuration."""
        return self._config

    @property
    def is_closed(self) -> bool:
        """Whether ``close`` was called."""
        return self._closed.is_set()

    def check_open(self) -> None:
        """Raise ``ClientClosedError`` after ``close``."""
        if self._closed.is_set():
            raise ClientClosedError("the client is closed: make a new one")

    def channel(self, address: str) -> grpc.Channel:
        """The channel to ``host:port``; it connects by itself when first used, and again after it broke."""
        self.check_open()
        with self._lock:
            if (channel := self._channels.get(address)) is None:
                channel = self._channels[address] = grpc.insecure_channel(address, options=self._channel_options())
                self._stubs[address] = BrokerStub(channel)
            return channel

    def stub(self, address: str) -> BrokerStub:
        """The protocol's calls over the channel to ``host:port``."""
        self.channel(address)
        return self._stubs[address]

    def _channel_options(self) -> list[tuple[str, Any]]:
        fetch_bytes = self._config.fetch_max_bytes if isinstance(self._config, ConsumerConfig) else 0
        options: list[tuple[str, Any]] = [
            ("grpc.max_send_message_length", -1),
            ("grpc.max_receive_message_length", fetch_bytes + _MESSAGE_OVERHEAD_BYTES),
            ("grpc.initial_reconnect_backoff_ms", max(self._config.reconnect_backoff_ms, 1)),
            ("grpc.min_reconnect_backoff_ms", max(self._config.reconnect_backoff_ms, 1)),
            ("grpc.max_reconnect_backoff_ms", max(self._config.reconnect_backoff_max_ms, 1)),
            ("grpc.keepalive_time_ms", _KEEPALIVE_MS),
            # Brokers are addressed directly, and retries are decided here, where their meaning is known.
            ("grpc.enable_http_proxy", 0),
            ("grpc.enable_retries", 0),
            # Otherwise all clients of a process to one broker share a connection, and its flow control.
            ("grpc.use_local_subchannel_pool", 1),
        ]
        if self._config.client_id:
            options.append(("grpc.primary_user_agent", self._config.client_id))
        return options

    def call(
        self,
        method: Callable[[BrokerStub], Method[Request, Response]],
        request: Request,
        *,
        address: str | None = None,
        changes: str | None = None,
        timeout_ms: int | None = None,
    ) -> Response:
        """Make a call to ``address`` or any bootstrap broker, with retries, and return its response.

        ``changes`` says what the call would change ("create topic t"): when the connection breaks after it was sent,
        ``UnknownOutcomeError`` is raised instead of sending it again. ``timeout_ms`` bounds all retries together
        (``default.api.timeout.ms``).

        Raises the broker's error, or ``BrokerUnavailableError`` when none answered for
        ``socket.connection.setup.timeout.ms``.
        """
        started = time.monotonic()
        deadline = started + (timeout_ms or self._config.default_api_timeout_ms) / 1000
        give_up = min(deadline, started + self._config.socket_connection_setup_timeout_ms / 1000)
        attempt = 0
        while True:
            target = address or self._bootstrap_address(attempt)
            try:
                return self._once(method, request, target, deadline)
            except MillraceError as error:
                until = give_up if isinstance(error, BrokerUnavailableError) else deadline
                wait_s = backoff_s(self._config, attempt)
                is_elsewhere = address is not None and isinstance(error, (NotCoordinatorError, NotLeaderError))
                if not error.retriable or is_elsewhere or time.monotonic() + wait_s > until or self.is_closed:
                    raise
                if changes and not _was_not_sent(error):
                    raise UnknownOutcomeError(
                        f"the connection to {target} broke on the request to {changes}: it may or may not have "
                        f"happened: look before you repeat it ({error.message})"
                    ) from error
            attempt += 1
            self.wait(wait_s)

    def once(
        self,
        method: Callable[[BrokerStub], Method[Request, Response]],
        request: Request,
        *,
        address: str,
        timeout_ms: int,
    ) -> Response:
        """Make a call without repeating it; raises the broker's error, ``BrokerUnavailableError``."""
        return self._once(method, request, address, time.monotonic() + timeout_ms / 1000)

    def _once(
        self, method: Callable[[BrokerStub], Method[Request, Response]], request: Request, target: str, deadline: float
    ) -> Response:
        timeout_s = min(self._config.request_timeout_ms / 1000, max(deadline - time.monotonic(), 0.001))
        try:
            response = self._send(method, request, target, timeout_s)
        except grpc.RpcError as error:
            raise self.explain(error, target) from error
        except ValueError as error:
            # grpc raises this when the channel was closed under the call.
            self.check_open()
            raise BrokerUnavailableError(f"the channel to {target} is closed") from error
        self._prefer(target)
        return response

    def _send(
        self,
        method: Callable[[BrokerStub], Method[Request, Response]],
        request: Request,
        target: str,
        timeout_s: float,
    ) -> Response:
        """Make the call and wait for it; for clients whose waiting can be ended to override."""
        return method(self.stub(target))(request, timeout=timeout_s)

    def begin(
        self,
        method: Method[Request, Response],
        request: Request,
        *,
        address: str,
        timeout_s: float,
        on_done: Callable[[Response | None, MillraceError | None], None],
    ) -> None:
        """Make a call, once, without waiting for it; ``on_done`` is told its answer or its error, in another thread.

        When the connections are closed meanwhile it is told of ``ClientClosedError``; if they are closed already, that
        is raised.
        """

        def work() -> None:
            try:
                response = method(request, timeout=timeout_s)
            except grpc.RpcError as error:
                on_done(None, self.explain(error, address))
            except ValueError as error:  # grpc raises this when the channel was closed before
                on_done(None, ClientClosedError(f"the client was closed before the call: {error}"))
            else:
                on_done(response, None)

        if not self._threads.start(work):
            self.check_open()

    def _bootstrap_address(self, attempt: int) -> str:
        addresses = self._config.addresses
        return addresses[(self._preferred + attempt) % len(addresses)]

    def _prefer(self, address: str) -> None:
        if address in self._config.addresses:
            self._preferred = self._config.addresses.index(address)

    def explain(self, error: grpc.RpcError, address: str) -> MillraceError:
        """The error that a failed call to ``address`` stands for, with the address and a remedy where none answered."""
        if self.is_closed:
            return ClientClosedError("the client was closed during the call")
        explained = error_from_rpc(error)
        if isinstance(explained, BrokerUnavailableError) and not _has_number(error):
            return BrokerUnavailableError(
                f"no broker answers at {address}: start one with 'millrace broker', or correct bootstrap.servers "
                f"({explained.message})"
            )
        return explained

    def wait(self, seconds: float) -> None:
        """Wait before a retry; raises ``ClientClosedError`` when the client is closed meanwhile."""
        if self._closed.wait(seconds):
            self.check_open()

    def close(self) -> None:
        """Close all channels; calls under way fail. May be called twice."""
        self._closed.set()
        with self._lock:
            channels, self._channels, self._stubs = list(self._channels.values()), {}, {}
        for channel in channels:
            channel.close()
        self._threads.close()


def _has_number(error: Any) -> bool:
    return any(key == "millrace-error-code" for key, _ in error.trailing_metadata() or ())


def _was_not_sent(error: MillraceError) -> bool:
    """Whether the request cannot have had an effect: the broker refused it, or no connection was made."""
    if not isinstance(error, BrokerUnavailableError) and error.retriable:
        return error.code != 7  # a timeout says nothing
    return "failed to connect" in error.message.lower() or "connection refused" in error.message.lower()
