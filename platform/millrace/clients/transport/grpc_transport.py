"""Calls over gRPC (``transport=grpc``).

Invariant: one channel to a broker, created on first use; it connects and reconnects by itself. With new certificates,
there is another one for the calls that follow. When the broker's address refuses connections, the next use finds the
address again, because the broker may have restarted.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, Final, cast

import grpc

from millrace.clients.transport.call_threads import CallThreads
from millrace.clients.transport.calls import (
    PendingCall,
    Request,
    Response,
    Throttle,
    UnaryCall,
    broken_off,
    not_reached,
)
from millrace.clients.transport.client_tls import ClientTls
from millrace.clients.transport.grpc_session import GrpcSession, Metadata
from millrace.clients.transport.tls_socket import find_refusal
from millrace.config.client import ClientConfig
from millrace.errors import BrokerUnavailableError, ClientClosedError, MillraceError, SaslAuthenticationError
from millrace.protocol.grpc_forks import use_grpc
from millrace.protocol.status import ERROR_CODE_KEY, error_from_rpc
from millrace.security import Reloading
from millrace.security.sasl import CredentialsSource

_SERVICE: Final = "/millrace.v1.Broker/"
_PROBE_S: Final = 5.0
"""Time for a handshake that shows why connections fail."""
_KEEPALIVE_MS: Final = 300_000
"""gRPC servers close connections that ping more often."""


class GrpcTransport:
    """One channel. Thread safe.

    ``address`` is the broker's in messages. ``find`` returns the address of its listener for gRPC, or raises
    ``MillraceError``; it may take seconds.
    """

    def __init__(
        self,
        address: str,
        find: Callable[[], str],
        config: ClientConfig,
        tls: Reloading[ClientTls] | None,
        credentials: CredentialsSource | None,
        response_bytes_max: int,
        threads: CallThreads,
        throttle: Throttle,
    ) -> None:
        self._address = address
        self._find = find
        self._config = config
        self._tls = tls
        self._session = None if credentials is None else GrpcSession(credentials, address.rpartition(":")[0])
        self._response_bytes_max = response_bytes_max
        self._threads = threads
        self._throttle = throttle
        self._lock = threading.Lock()
        self._channel: grpc.Channel | None = None
        self._methods: dict[str, grpc.UnaryUnaryMultiCallable[Any, bytes]] = {}
        self._is_closed = False
        self._made_of: ClientTls | None = None
        self._made_for = address
        self._earlier: grpc.Channel | None = None
        """Channel with earlier certificates, whose calls may be in flight."""

    def channel(self) -> grpc.Channel:
        """Return the channel.

        Raises ``ClientClosedError``, ``EnvironmentProblemError`` (``use_grpc``), and the errors of ``find``.
        """
        with self._lock:
            if self._is_closed:
                raise ClientClosedError("the client is closed: make a new one")
            self._take_new_certificates()
            if self._channel is None:
                self._channel = self._new_channel(self._find())
            return self._channel

    def _take_new_certificates(self) -> None:
        """Leave the channel if the client's stores have new content. Calls in flight end on it."""
        if self._channel is None or self._tls is None or self._tls.current() is self._made_of:
            return
        if self._earlier is not None:
            self._earlier.close()
        self._earlier, self._channel, self._methods = self._channel, None, {}

    def _new_channel(self, address: str) -> grpc.Channel:
        use_grpc()
        if self._tls is None:
            return grpc.insecure_channel(address, options=self._options())
        self._made_of, self._made_for = self._tls.current(), address
        material = self._made_of.material
        credentials = grpc.ssl_channel_credentials(
            material.authorities or None, material.private_key or None, material.certificate_chain or None
        )
        return grpc.secure_channel(address, credentials, options=self._options())

    @property
    def is_open(self) -> bool:
        """True if the channel and the session of SASL exist, so that a call begins without a wait."""
        return self._channel is not None and (self._session is None or self._session.is_open)

    def _options(self) -> list[tuple[str, Any]]:
        config = self._config
        options: list[tuple[str, Any]] = [
            ("grpc.max_send_message_length", -1),
            ("grpc.max_receive_message_length", self._response_bytes_max),
            ("grpc.initial_reconnect_backoff_ms", max(config.reconnect_backoff_ms, 1)),
            ("grpc.min_reconnect_backoff_ms", max(config.reconnect_backoff_ms, 1)),
            ("grpc.max_reconnect_backoff_ms", max(config.reconnect_backoff_longest_ms, 1)),
            ("grpc.keepalive_time_ms", _KEEPALIVE_MS),
            # Brokers are addressed directly, and the callers decide retries, because they know the effects of a call.
            ("grpc.enable_http_proxy", 0),
            ("grpc.enable_retries", 0),
            # Otherwise all clients of a process to one broker share a connection, and its flow control.
            ("grpc.use_local_subchannel_pool", 1),
        ]
        if config.client_id:
            options.append(("grpc.primary_user_agent", config.client_id))
        return options

    def _method(self, name: str) -> grpc.UnaryUnaryMultiCallable[Any, bytes]:
        channel = None if self._tls is None else self.channel()
        method = self._methods.get(name)
        if method is None:
            # The channel handles bytes; the call encodes and decodes them.
            method = (channel or self.channel()).unary_unary(
                _SERVICE + name, request_serializer=bytes, response_deserializer=bytes
            )
            self._methods[name] = method
        return method

    def _metadata(self, timeout_s: float) -> Metadata:
        """Return the metadata of a call: the session of a client with SASL.

        Raises ``SaslAuthenticationError``, ``BrokerUnavailableError``, ``ClientClosedError``.
        """
        if self._session is None:
            return ()
        try:
            return self._session.metadata(self.channel(), timeout_s)
        except grpc.RpcError as error:
            raise self.explain(error) from error
        except ValueError as error:
            raise self._closed_under(error) from error
        except OSError as error:
            raise not_reached(self._address, str(error)) from error

    def call(self, call: UnaryCall[Request, Response], request: Request, timeout_s: float) -> Response:
        """Make a call and wait for it; raises the broker's error, ``BrokerUnavailableError``, ``ClientClosedError``."""
        metadata = self._metadata(timeout_s)
        try:
            data = self._method(call.name)(call.encode(request), timeout=timeout_s, metadata=metadata)
        except grpc.RpcError as error:
            raise self._explain_call(error) from error
        except ValueError as error:  # grpc raises this if the channel was closed during the call
            raise self._closed_under(error) from error
        return self._throttle.decoded(call, data)

    def begin(
        self,
        call: UnaryCall[Request, Response],
        request: Request,
        timeout_s: float,
        pending: PendingCall[Response],
        *,
        cancellable: bool,
    ) -> None:
        """Make a call, and pass its outcome to ``pending``.

        A call that is not ``cancellable`` is a plain call in a thread, which costs half as much as grpc's future.
        """
        if cancellable:
            self._begin_future(call, request, timeout_s, pending)
            return

        def work() -> None:
            try:
                response = self.call(call, request, timeout_s)
            except MillraceError as error:
                pending.complete(None, error)
            else:
                pending.complete(response, None)

        if not self._threads.start(work):
            raise ClientClosedError("the client is closed: make a new one")

    def _begin_future(
        self, call: UnaryCall[Request, Response], request: Request, timeout_s: float, pending: PendingCall[Response]
    ) -> None:
        try:
            future: Any = self._method(call.name).future(
                call.encode(request), timeout=timeout_s, metadata=self._metadata(timeout_s)
            )
        except ValueError as error:
            raise self._closed_under(error) from error

        def done(_: Any) -> None:
            try:
                response = self._throttle.decoded(call, future.result())
            except grpc.RpcError as error:
                pending.complete(None, self._explain_call(error))
            except (grpc.FutureCancelledError, ValueError) as error:
                pending.complete(None, self._closed_under(error))
            except MillraceError as error:
                pending.complete(None, error)
            else:
                pending.complete(response, None)

        if not pending.aborts_by(future.cancel):
            future.cancel()
        future.add_done_callback(done)

    def _explain_call(self, error: grpc.RpcError) -> MillraceError:
        """Return the error of a failed call. A call with a session that has ended was not made, and may be repeated."""
        explained = self.explain(error)
        if self._session is None or not isinstance(explained, SaslAuthenticationError):
            return explained
        self._session.forget()
        return not_reached(self._address, explained.message)

    def explain(self, error: grpc.RpcError) -> MillraceError:
        """Return the error of a failed call, with the address and a remedy if no broker answered."""
        if self._is_closed:
            return ClientClosedError("the client was closed during the call")
        explained = error_from_rpc(error)
        if isinstance(explained, BrokerUnavailableError) and not _has_number(error):
            reason = explained.message
            refusal = self._find_refusal()
            if refusal is not None:
                return refusal
            is_refused = "failed to connect" in reason.lower() or "connection refused" in reason.lower()
            if not is_refused:
                return broken_off(self._address, reason)
            self._close_channel()
            return not_reached(self._address, reason)
        return explained

    def _find_refusal(self) -> MillraceError | None:
        """Return why broker or client refuses the other's certificate, which gRPC repeats until the call times out."""
        if self._made_of is None:
            return None
        host, _, port = self._made_for.rpartition(":")
        host = host.removeprefix("[").removesuffix("]")
        return find_refusal(self._made_of.context, host, int(port), _PROBE_S, self._config)

    def _closed_under(self, error: Exception) -> MillraceError:
        if self._is_closed:
            return ClientClosedError(f"the client was closed during the call: {error}")
        return broken_off(self._address, "the channel was closed")

    def _close_channel(self) -> None:
        with self._lock:
            channel, self._channel = self._channel, None
            self._methods = {}
        if channel is not None:
            channel.close()

    def close(self) -> None:
        """Close the channel for good; calls in flight fail."""
        self._is_closed = True
        self._close_channel()
        if self._earlier is not None:
            self._earlier.close()


def _has_number(error: Any) -> bool:
    return any(key == ERROR_CODE_KEY for key, _ in cast("Any", error.trailing_metadata() or ()))
