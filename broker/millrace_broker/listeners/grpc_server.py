"""gRPC listener, a thin adapter between grpc.aio and ``millrace_broker.api``.

Every call is registered with a streamed request, so that its body is received only when the adapter reads it. Admission
comes first. HTTP/2's flow control keeps the bodies of waiting calls in the sender's memory.
"""

from __future__ import annotations

import asyncio
import logging
import re
import resource
import ssl
import time
from collections.abc import AsyncIterator
from contextlib import ExitStack
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final
from urllib.parse import unquote

import grpc
import grpc.aio
from google.protobuf.message_factory import GetMessageClass

from millrace.config.broker import BrokerConfig
from millrace.config.integers import INT_MAX
from millrace.config.listeners import Listener, ListenerProtocol
from millrace.errors import (
    EnvironmentProblemError,
    InvalidConfigError,
    InvalidRequestError,
    MillraceError,
    RequestTimedOutError,
    SaslAuthenticationError,
    ThrottledError,
)
from millrace.protocol import grpc_sasl
from millrace.protocol import millrace_pb2 as pb
from millrace.protocol.grpc_forks import use_grpc
from millrace.protocol.status import ERROR_CODE_KEY, status_of
from millrace.security import refuse_for_grpc
from millrace_broker.api import (
    STREAM_HANDLERS,
    ClientAddress,
    RequestContext,
    StreamHandler,
    UnaryHandler,
    in_progress,
    known_error,
)
from millrace_broker.api.common.throttling import settle, throttled
from millrace_broker.broker import Broker
from millrace_broker.listeners.grpc_connections import GrpcConnections
from millrace_broker.listeners.grpc_sasl import GrpcSessions
from millrace_broker.listeners.shared import (
    FRAMING_BYTES,
    RECEPTION_TIMEOUT_S,
    UNARY_METHODS,
    binding_problem,
)
from millrace_broker.network.sockets import KEEPALIVE_S, KEEPALIVE_TIMEOUT_S
from millrace_broker.quotas import (
    PARKED_CALL_BYTES,
    AdmittedCall,
    Usage,
    class_of,
    current_call,
    parked,
    pause,
)
from millrace_broker.security import ANONYMOUS, KafkaPrincipal, ListenerAccess, SaslConversation

_logger = logging.getLogger(__name__)

_SERVICE: Final = pb.DESCRIPTOR.services_by_name["Broker"]
_DETAILS_MAX: Final = 2000
"""Longest error message in the status, in characters. All headers of a call share 8 KiB."""

_HANDSHAKE_MS: Final = 10_000
"""Longest time until a new connection has completed TLS, and has sent the settings with which HTTP/2 begins."""
_QUOTA_S: Final = 1.0
"""Interval in which a throttled call looks whether it still has to wait, because a raised quota shortens the wait."""

_STREAM_WINDOW_BYTES: Final = 256 * 1024
"""The part of a body that gRPC receives before it is read. With a round trip of 50 ms, a call can send 5 MB/s."""
_USER_AGENT: Final = re.compile(r"(?:(?P<client_id>.*) )?grpc-(?!c/)\S+/", re.DOTALL)
"""User agent of gRPC clients: the client's own part, and the library, as in ``mine grpc-python/1.85 grpc-c/58.0``."""

_Context = Any  # grpc.aio.ServicerContext is generic in types that this adapter does not use


class GrpcListener:
    """Listener of one port for gRPC. Call ``bind`` first, then ``start`` and ``stop`` in the event loop."""

    def __init__(self, config: BrokerConfig, name: str) -> None:
        """Raise ``InvalidConfigError`` for a security that is not possible, ``EnvironmentProblemError`` in a fork."""
        self._name: Final = name
        access = ListenerAccess(config, name)
        check_grpc(access, name)
        connections = GrpcConnections(name, config.connections_max_idle_ms / 1000, time.monotonic)
        self._callers: Final = Callers(name, access, GrpcSessions() if access.protocol.has_sasl else None, connections)
        self._credentials: Final = _credentials(self._callers)
        use_grpc()
        self._server: Final = grpc.aio.server(options=_options(config))
        self._has_started = False

    def bind(self, address: Listener) -> int:
        """Bind to an address and return the port. Raises ``EnvironmentProblemError`` if it cannot be bound."""
        try:
            if self._credentials is None:
                port = self._server.add_insecure_port(str(address))
            else:
                port = self._server.add_secure_port(str(address), self._credentials)
        except RuntimeError as error:
            raise EnvironmentProblemError(binding_problem(self._name, address)) from error
        if port == 0:
            raise EnvironmentProblemError(binding_problem(self._name, address))
        return port

    async def start(self, broker: Broker) -> None:
        """Start to answer calls."""
        callers = self._callers
        self._server.add_generic_rpc_handlers((_handlers(broker, callers),))
        if callers.sessions is not None:
            self._server.add_generic_rpc_handlers((_authentication(broker, callers, callers.sessions),))
        await self._start()

    async def _start(self) -> None:
        self._has_started = True
        await self._server.start()

    def take_access(self, access: ListenerAccess) -> None:
        """Use another security of the same protocol for new connections. It asks for client certificates as before."""
        assert access.protocol is self._callers.access.protocol
        self._callers.access = access

    async def stop(self, grace_s: float) -> None:
        """Refuse new calls, and let those in progress end. Cancel the remaining calls after ``grace_s``.

        Call it also for a listener that was not started, or could not be bound.
        """
        if not self._has_started:
            # gRPC stops only servers that have started. Any other server keeps its port until the process ends. gRPC
            # also logs such a server while it frees it, and a handler that keeps the record keeps freed memory.
            await self._start()
        await self._server.stop(grace_s)


def check_grpc(access: ListenerAccess, name: str) -> None:
    """Raise ``InvalidConfigError`` if gRPC cannot have this security."""
    if access.tls is None:
        return
    refuse_for_grpc(access.options, f"listener {name} of the protocol grpc")
    if access.options.ssl_client_auth == "requested":
        raise InvalidConfigError(f"listener {name}: ssl.client.auth=requested is not for gRPC: set required or none")


def _credentials(callers: Callers) -> grpc.ServerCredentials | None:
    """Return the credentials of a listener with TLS, which gRPC asks for at each handshake."""
    access = callers.access
    if access.tls is None:
        return None

    def current() -> grpc.ServerCertificateConfiguration:
        tls = callers.access.tls
        assert tls is not None, "a listener keeps its security protocol"
        material = tls.current().material
        pair = (material.private_key, material.certificate_chain)
        return grpc.ssl_server_certificate_configuration([pair], material.authorities or None)

    return grpc.dynamic_ssl_server_credentials(
        current(), current, require_client_authentication=access.options.ssl_client_auth == "required"
    )


@dataclass(slots=True)
class Callers:
    """Connections of a listener, and the authentication of its callers. ``access`` may be replaced."""

    listener_name: str
    access: ListenerAccess
    sessions: GrpcSessions | None
    """Sessions of SASL; None at a listener without."""
    connections: GrpcConnections

    async def connection(self, broker: Broker, peer: str) -> ClientAddress:
        """Return the address of a call's connection, which waits if it is new. Raises ``ThrottledError``."""
        address = client_address(peer)
        await self.connections.call_begins(peer, address.host, broker.client_quotas.connections)
        return address

    def principal(self, context: _Context) -> KafkaPrincipal:
        """Return the principal of a call.

        Raises ``SaslAuthenticationError`` without a session, and ``SslAuthenticationError`` if no rule matches the
        certificate.
        """
        if self.sessions is not None:
            return self.sessions.principal(context)
        if self.access.tls is None:
            return ANONYMOUS
        found = context.auth_context().get("x509_pem_cert")
        return self.access.principal(ssl.PEM_cert_to_DER_cert(found[0].decode("ascii")) if found else None)


def _authentication(broker: Broker, callers: Callers, sessions: GrpcSessions) -> grpc.GenericRpcHandler[Any, Any]:
    """Return the handler of the call that authenticates."""

    async def behaviour(_requests: AsyncIterator[Any], context: _Context) -> None:
        with ExitStack() as stack:
            try:
                address = await callers.connection(broker, context.peer())
                admitted = broker.admission.begin(None, class_of("SaslAuthenticate"))
                stack.callback(admitted.end)
                stack.callback(admitted.response_lease.release)
                current_call.set(admitted)
                clock = asyncio.get_running_loop().time
                conversation = SaslConversation(lambda: callers.access.sasl, broker.logins, clock)
                try:
                    await sessions.exchange(conversation, context, address.host)
                except SaslAuthenticationError:
                    if broker.audit is not None:
                        request = RequestContext(
                            api_name="SaslAuthenticate",
                            listener_name=callers.listener_name,
                            principal=ANONYMOUS,
                            client_id=_client_id(context),
                            client_address=address,
                            response_lease=admitted.response_lease,
                        )
                        broker.audit.record_refused_login(request, conversation.refused_user)
                    raise
                return
            except Exception as error:  # noqa: BLE001 - every error ends the call with its status
                failure = known_error(error)
        await _abort(context, failure)

    handler = grpc.stream_stream_rpc_method_handler(behaviour)
    return grpc.method_handlers_generic_handler(grpc_sasl.SERVICE, {grpc_sasl.METHOD: handler})


def _handlers(broker: Broker, callers: Callers) -> grpc.GenericRpcHandler[Any, Any]:
    """Return the broker's handlers of the ``Broker`` service."""
    handlers = {
        method.name: grpc.stream_unary_rpc_method_handler(
            _unary(broker, callers, method.name, method.handler),
            request_deserializer=method.request.FromString,
            response_serializer=_serialized,
        )
        for method in UNARY_METHODS.values()
    }
    for name, handler in STREAM_HANDLERS.items():
        handlers[name] = grpc.stream_stream_rpc_method_handler(
            _stream(broker, callers, name, handler),
            request_deserializer=GetMessageClass(_SERVICE.methods_by_name[name].input_type).FromString,
            response_serializer=_serialized,
        )
    return grpc.method_handlers_generic_handler(_SERVICE.full_name, handlers)


def _options(config: BrokerConfig) -> list[tuple[str, int]]:
    parked_max = config.purgatory_max_request_bytes // PARKED_CALL_BYTES
    return [
        ("grpc.max_receive_message_length", config.socket_request_max_bytes + FRAMING_BYTES),
        ("grpc.max_send_message_length", -1),  # responses have their own limits; a first batch is always sent
        # Waiting calls are streams too. A client with many of them must still get answers to its other calls.
        ("grpc.max_concurrent_streams", config.queued_max_requests + parked_max),
        # With the probe, gRPC receives megabytes of each body that nothing reads yet, also before authentication.
        ("grpc.http2.bdp_probe", 0),
        ("grpc.http2.lookahead_bytes", _STREAM_WINDOW_BYTES),
        ("grpc.max_connection_idle_ms", config.connections_max_idle_ms),
        ("grpc.server_handshake_timeout_ms", _HANDSHAKE_MS),
        ("grpc.max_allowed_incoming_connections", _connections_max(config)),
        ("grpc.so_reuseport", 0),  # two brokers on one port must be an error, not a lottery
        # Detect a peer that vanished without closing, and allow pings of idle clients.
        ("grpc.keepalive_time_ms", KEEPALIVE_S * 1000),
        ("grpc.keepalive_timeout_ms", KEEPALIVE_TIMEOUT_S * 1000),
        ("grpc.http2.min_ping_interval_without_data_ms", 10_000),
        ("grpc.keepalive_permit_without_calls", 1),
    ]


def _connections_max(config: BrokerConfig) -> int:
    """Return the largest number of a listener's connections, which leaves half of the descriptors to others."""
    wanted = config.max_connections + config.control_max_connections + config.inter_broker_max_connections
    descriptors, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    sharing = sum(config.protocol_of(name) is ListenerProtocol.GRPC for name in config.listener_addresses)
    return min(wanted, INT_MAX if descriptors == resource.RLIM_INFINITY else descriptors // 2 // max(sharing, 1))


def _serialized(response: Any) -> bytes:
    """Serialize a response. Some responses write themselves with fewer copies than their generated class."""
    data: bytes = response.SerializeToString()
    return data


def _unary(broker: Broker, callers: Callers, name: str, handler: UnaryHandler) -> Any:
    async def behaviour(_requests: AsyncIterator[Any], context: _Context) -> Any:
        with ExitStack() as stack:
            try:
                request, request_context = await _admit(broker, callers, name, context, stack)
                work = handler(broker, request, request_context)
                if request_context.usage is None:
                    return await work
                return await request_context.usage.measured(throttled(work, request_context))
            except Exception as error:  # noqa: BLE001 - every error ends the call with its status
                failure = known_error(error)
        return await _abort(context, failure)

    return behaviour


def _stream(broker: Broker, callers: Callers, name: str, handler: StreamHandler) -> Any:
    async def behaviour(_requests: AsyncIterator[Any], context: _Context) -> AsyncIterator[Any]:
        with ExitStack() as stack:
            try:
                request, request_context = await _admit(broker, callers, name, context, stack)
                async for response in handler(broker, request, request_context):
                    with parked():  # until the caller takes it
                        yield response
                        if settle(response, request_context):
                            await _wait_for_quota(request_context.usage, request_context.api_name)
                return
            except Exception as error:  # noqa: BLE001 - every error ends the call with its status
                failure = known_error(error)
        await _abort(context, failure)

    return behaviour


async def _admit(
    broker: Broker, callers: Callers, name: str, context: _Context, stack: ExitStack
) -> tuple[Any, RequestContext]:
    """Count the call, wait for memory for its body, and receive the body. Return it with its context."""
    peer = context.peer()
    address = await callers.connection(broker, peer)
    principal = callers.principal(context)
    client_id = _client_id(context)
    usage = None
    if broker.client_quotas.is_active:
        usage = broker.client_quotas.usage(principal.name, client_id, 0)
        await _wait_for_quota(usage, name)
    admitted = broker.admission.begin(peer, class_of(name))
    stack.callback(admitted.end)
    request_context = RequestContext(
        api_name=name,
        listener_name=callers.listener_name,
        principal=principal,
        client_id=client_id,
        client_address=address,
        response_lease=admitted.response_lease,
        usage=usage,
    )
    in_progress.set(request_context)
    # The call is done once its response has been sent. Until then, the response is in memory.
    context.add_done_callback(lambda _: admitted.response_lease.release())
    await admitted.take_unseen_memory()
    request = await _body(context, admitted, f"{name} of {principal} (client id {client_id!r}) at {peer}")
    size_bytes = request.ByteSize()
    admitted.saw_request(size_bytes)
    if usage is not None:
        usage.request_bytes = size_bytes
    current_call.set(admitted)
    return request, request_context


class _BodyReception:
    """Reception of one body, whose progress gRPC does not show."""

    received_bytes = 0

    def __init__(self, admitted: AdmittedCall, limit: asyncio.Timeout) -> None:
        """``limit`` ends the reception."""
        self._admitted: Final = admitted
        self._limit: Final = limit
        self.stalled_s: float | None = None
        """Time after which the call gave way; None before."""

    @property
    def held_bytes(self) -> int:
        """See ``Reception``."""
        return self._admitted.request_lease.held_bytes

    def give_way(self, stalled_s: float) -> None:
        """See ``Reception``."""
        self.stalled_s = stalled_s
        self._admitted.end()
        if not self._limit.expired():
            self._limit.reschedule(0.0)


async def _body(context: _Context, admitted: AdmittedCall, caller: str) -> Any:
    """Receive the body of a call. Raises ``ThrottledError`` if it gives way to other calls."""
    limit = asyncio.timeout(RECEPTION_TIMEOUT_S)
    reception = _BodyReception(admitted, limit)
    try:
        async with limit:
            admitted.unseen_receptions.begin(reception)
            # Not by iteration, which keeps the message until a collection of cyclic garbage.
            request = await context.read()
    except TimeoutError:
        if reception.stalled_s is None:
            limit_s = f"{RECEPTION_TIMEOUT_S:.0f} s"
            raise RequestTimedOutError(f"the request's body did not arrive within {limit_s}") from None
    finally:
        admitted.unseen_receptions.end(reception)
    if reception.stalled_s is not None:
        reason = f"its body has not arrived in {reception.stalled_s:.0f} s, while other calls wait"
        _logger.warning("%s gives way: %s", caller, reason)
        raise ThrottledError(f"{reason}: try again")
    if request is grpc.aio.EOF:  # type: ignore[attr-defined]  # the stubs lack it
        raise InvalidRequestError("the call ended without a request")
    return request


async def _wait_for_quota(usage: Usage | None, call: str) -> None:
    """Leave the body of a call with its sender, until the client's quotas allow the call.

    gRPC has no connections that could be muted.
    """
    while usage is not None and (wait_s := usage.wait_s(call)) > 0:
        await pause(min(wait_s, _QUOTA_S))


def _client_id(context: _Context) -> str:
    for key, value in context.invocation_metadata():
        if key == "user-agent":
            return client_id_of(value)
    return ""


@lru_cache(maxsize=1024)
def client_id_of(user_agent: str) -> str:
    """Return the client id in a user agent, empty if there is none."""
    found = _USER_AGENT.match(user_agent)
    return found["client_id"] or "" if found is not None else user_agent


@lru_cache(maxsize=1024)
def client_address(peer: str) -> ClientAddress:
    """Return the address in gRPC's name of a peer: ``ipv4:127.0.0.1:5000``, ``ipv6:%5B::1%5D:5000``."""
    host, _, port = unquote(peer.partition(":")[2]).rpartition(":")
    return ClientAddress(host.removeprefix("[").removesuffix("]"), int(port))


async def _abort(context: _Context, error: MillraceError) -> None:
    details = error.message
    if len(details) > _DETAILS_MAX:
        details = details[: _DETAILS_MAX - 3] + "..."
    await context.abort(status_of(error), details, trailing_metadata=((ERROR_CODE_KEY, str(error.code)),))
