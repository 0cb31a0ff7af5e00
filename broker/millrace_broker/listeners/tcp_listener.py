"""Listener for Kafka's framing: calls of Kafka and of millrace (``millrace.protocol.frames``).

Kafka's class is ``SocketServer.Acceptor``. The listener owns the sockets and the connections (``connection``). It
closes connections that are silent for too long, and lets calls in progress end when the broker stops. The handlers are
the same as for gRPC.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
from collections.abc import Callable, Mapping
from typing import Final

from millrace.config.broker import BrokerConfig
from millrace.config.listeners import Listener
from millrace.errors import EnvironmentProblemError, SslAuthenticationError, UnsupportedVersionError
from millrace.protocol import frames
from millrace.protocol import millrace_pb2 as pb
from millrace_broker.api import ClientAddress
from millrace_broker.api.api_versions import endpoints, software_version
from millrace_broker.broker import Broker
from millrace_broker.listeners.connection import Connection
from millrace_broker.listeners.connection_states import SASL_KEYS
from millrace_broker.listeners.shared import FRAMING_BYTES, binding_problem
from millrace_broker.listeners.tls_transport import TlsTransport
from millrace_broker.listeners.unmapped_connection import UnmappedConnection
from millrace_broker.listeners.wire_calls import UnknownCall, WireCall, own_calls
from millrace_broker.quotas import ACTIVE_CONNECTION_S, CallClass
from millrace_broker.security import ANONYMOUS, ListenerAccess, SaslConversation

_logger: Final = logging.getLogger(__name__)

_HELLO_BYTES_MAX: Final = 16 * 1024
_HEAD_BYTES: Final = 32
"""Room for the head of a request in ``FRAMING_BYTES``."""
_BUFFER_BYTES: Final = 256 * 1024
_CHECK_S: Final = 0.5
_RESERVED_S: Final = 1.0
"""Time that a connection of the reserve may be idle while other connections want its place."""
_BACKLOG: Final = 512
_HANDSHAKE_S: Final = 10.0
_HANDSHAKES_MAX: Final = 1000
"""Largest number of TLS handshakes at a time. A further one ends the oldest, which is a client that says nothing."""
_UNCOUNTED_MAX: Final = 2000
"""Largest number of connections at a time that are not counted, because they have made no call after authentication.

A further one ends the oldest.
Without a bound, clients that say nothing could take all file descriptors, and the broker could open no segment.
"""
_NOT_HERE: Final = (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT)


class TcpListener:
    """Listener of one port. Call ``bind`` first, then ``start`` and ``stop`` in the event loop."""

    broker: Broker
    """The broker that answers, set by ``start``."""

    def __init__(
        self,
        config: BrokerConfig,
        name: str,
        kafka_calls: Mapping[int, WireCall],
        on_close: Callable[[str, ClientAddress], None],
    ) -> None:
        """Prepare a listener.

        ``kafka_calls`` are the calls of Kafka, which all listeners of a broker share. ``on_close`` gets the listener's
        name and the client of each closed connection.

        Raises ``InvalidConfigError`` if the listener's security cannot be as configured.
        """
        self.name: Final = name
        self.access = ListenerAccess(config, name)
        self._handshakes: Final[dict[TlsTransport, float]] = {}
        self._encrypted: Final = memoryview(bytearray(_BUFFER_BYTES if self.access.tls is not None else 0))
        self._request_bytes_max: Final = config.socket_request_max_bytes
        self.idle_s_max: Final = config.connections_max_idle_ms / 1000
        self.buffer: Final = memoryview(bytearray(_BUFFER_BYTES))
        """Receive buffer shared by connections that have no message buffer of their own.

        Its bytes are processed at once.
        """
        self._answers_kafka: Final = config.kafka_clients_enable
        self._own_calls: Final = own_calls()
        self._kafka_calls: Final = kafka_calls
        self._on_close: Final = on_close
        self._sockets: list[socket.socket] = []
        self._servers: list[asyncio.Server] = []
        self._connections: set[Connection] = set()
        self._uncounted: Final[dict[Connection, None]] = {}
        """Connections that are not counted yet, the oldest first."""
        self._has_stopped = False
        self._are_closed = asyncio.Event()
        self._checking: asyncio.TimerHandle | None = None

    def bind(self, address: Listener) -> int:
        """Bind to the address and return the port. No call is answered before ``start``.

        Raises ``EnvironmentProblemError`` if the address cannot be bound.
        """
        port = address.port
        try:
            for family, kind, protocol, _, where in socket.getaddrinfo(
                address.host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
            ):
                try:
                    sock = socket.socket(family, kind, protocol)
                    self._sockets.append(sock)
                    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                    if family == socket.AF_INET6:
                        sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, int(address.host != "::"))
                    sock.bind((where[0], port, *where[2:]))
                    port = sock.getsockname()[1]  # the same port for all of a host's addresses
                except OSError as error:
                    if port == address.port or error.errno not in _NOT_HERE:
                        raise
                    self._sockets.pop().close()  # "localhost" may name an address that this host does not have
        except OSError as error:
            self.close()
            raise EnvironmentProblemError(f"{binding_problem(self.name, address)} ({error})") from error
        return port

    def close(self) -> None:
        """Release the address of a listener that was not started."""
        for sock in self._sockets:
            sock.close()
        self._sockets = []

    async def start(self, broker: Broker) -> None:
        """Start to answer calls. Raises ``EnvironmentProblemError`` if another process now listens on the address."""
        self.broker = broker
        self.loop = asyncio.get_running_loop()
        try:
            for sock in self._sockets:
                server = await self.loop.create_server(self._protocol, sock=sock, backlog=_BACKLOG)
                self._servers.append(server)
        except OSError as error:
            raise EnvironmentProblemError(f"{error}: set another port of {self.name} with listeners") from error
        self._check()

    def conversation(self) -> SaslConversation | None:
        """Return the SASL of a new connection; None at a listener without SASL."""
        if not self.access.protocol.has_sasl:
            return None
        return SaslConversation(lambda: self.access.sasl, self.broker.logins, self.loop.time)

    def take_access(self, access: ListenerAccess) -> None:
        """Use another security of the same protocol for new connections, and for authentications of open ones."""
        assert access.protocol is self.access.protocol
        self.access = access

    def _protocol(self) -> Connection | TlsTransport:
        tls = self.access.tls
        if tls is None:
            return Connection(self, ANONYMOUS)
        return TlsTransport(self, tls.value.context, self._encrypted_connection)

    def _encrypted_connection(self, certificate: bytes | None) -> Connection:
        """Return the connection of a client whose handshake has ended."""
        try:
            return Connection(self, self.access.principal(certificate))
        except SslAuthenticationError as error:
            return UnmappedConnection(self, error)

    async def stop(self, grace_s: float) -> None:
        """Refuse new calls, and let those in progress end. Cancel the remaining calls after ``grace_s``."""
        self._has_stopped = True
        for server in self._servers:
            for sock in server.sockets:
                self.loop.remove_reader(sock)
        await asyncio.sleep(0)  # a closed server would leak a connection that was accepted just now
        for server in self._servers:
            server.close()
        if self._checking is not None:
            self._checking.cancel()
        for handshake in list(self._handshakes):
            handshake.abort()
        for connection in list(self._connections):
            connection.stop()
        if not await self._are_all_closed(grace_s):
            for connection in list(self._connections):
                connection.cancel()
            await self._are_all_closed(1.0)
        for connection in list(self._connections):
            connection.abort()
        self.close()

    async def _are_all_closed(self, timeout_s: float) -> bool:
        try:
            async with asyncio.timeout(timeout_s):
                while self._connections:
                    self._are_closed.clear()
                    await self._are_closed.wait()
        except TimeoutError:
            return False
        return True

    # --- for handshakes -------------------------------------------------------------------------------------------

    @property
    def encrypted_buffer(self) -> memoryview:
        """See ``TlsOwner``."""
        return self._encrypted

    def handshake_began(self, connection: TlsTransport, transport: asyncio.Transport) -> None:
        """See ``TlsOwner``."""
        if len(self._handshakes) >= _HANDSHAKES_MAX:
            self._end_handshake(next(iter(self._handshakes)), f"there are more than {_HANDSHAKES_MAX} handshakes")
        self._handshakes[connection] = self.loop.time()
        self._take_turn(transport)
        if self._has_stopped:
            connection.abort()

    def handshake_ended(self, connection: TlsTransport, failure: Exception | None) -> None:
        """See ``TlsOwner``."""
        began = self._handshakes.pop(connection, None)
        if began is None or failure is None:
            return
        peer = connection.get_extra_info("peername")
        self.broker.admission.addresses.closed(peer[0])
        if not self._has_stopped:
            _logger.info("the TLS handshake with %s failed: %s", peer, failure)

    def _end_handshake(self, connection: TlsTransport, reason: str) -> None:
        """Close the connection of an unfinished handshake."""
        self.handshake_ended(connection, ConnectionAbortedError(reason))
        connection.abort()

    # --- for connections ------------------------------------------------------------------------------------------

    def hello(self) -> pb.HelloResponse:
        """Return the first message for a client."""
        return pb.HelloResponse(
            software_version=software_version(),
            broker_id=self.broker.config.broker_id,
            cluster_id=self.broker.cluster_id,
            request_bytes_max=self._request_bytes_max + FRAMING_BYTES - _HEAD_BYTES,
            idle_ms_max=self.broker.config.connections_max_idle_ms,
            endpoints=endpoints(self.broker),
        )

    def wire_call(self, api_key: int) -> WireCall:
        """Return the call of an API key. Raises ``UnsupportedVersionError`` if the broker has none."""
        if api_key >= frames.OWN_KEYS_MIN:
            return self._own_calls.get(api_key) or UnknownCall(f"{api_key}")
        found = self._kafka_calls.get(api_key)
        if not (self._answers_kafka or api_key in SASL_KEYS):  # by which clients of millrace authenticate too
            raise UnsupportedVersionError("Kafka's clients are not answered here (kafka.clients.enable=false)")
        if found is None:
            raise UnsupportedVersionError(f"API key {api_key} is no call that this broker has")
        return found

    def size_max(self, api_key: int) -> int:
        """Return the size in bytes of the largest request of a call."""
        if api_key == frames.HELLO:
            return _HELLO_BYTES_MAX
        return self._request_bytes_max + (FRAMING_BYTES if api_key >= frames.OWN_KEYS_MIN else 0)

    def opened(self, connection: Connection, transport: asyncio.Transport) -> None:
        """Register a connection."""
        self._connections.add(connection)
        self._uncounted[connection] = None
        if len(self._uncounted) > _UNCOUNTED_MAX:
            oldest = next(iter(self._uncounted))
            del self._uncounted[oldest]
            _logger.info(
                "the connection from %s is closed: there are more than %d without a call",
                oldest.client_address,
                _UNCOUNTED_MAX,
            )
            oldest.abort()
        if self.access.tls is None:
            self._take_turn(transport)
        if self._has_stopped:  # it was accepted just before
            connection.abort()

    def _take_turn(self, transport: asyncio.Transport) -> None:
        """Read nothing from a new connection until the rates of new connections allow it; close a refused one then."""
        host = transport.get_extra_info("peername")[0]
        if not self.broker.admission.addresses.opened(host):
            _logger.info("a connection from %s is closed: its address has max.connections.per.ip connections", host)
            transport.abort()
            return
        rates = self.broker.client_quotas.connections
        if not rates.is_active:
            return
        delay = rates.opened(self.name, host)
        if delay.is_refused or delay.wait_s > 0:
            transport.pause_reading()
            self.loop.call_later(delay.wait_s, transport.abort if delay.is_refused else transport.resume_reading)

    def closed(self, connection: Connection) -> None:
        """Remove a closed connection."""
        self._connections.discard(connection)
        self._uncounted.pop(connection, None)
        self.broker.admission.addresses.closed(connection.client_address.host)
        self._on_close(self.name, connection.client_address)
        if not self._connections:
            self._are_closed.set()

    def count(self, connection: Connection, *, is_broker: bool) -> None:
        """Count a connection. If there are too many, close one that has been idle for some time.

        Raises ``ThrottledError``.
        """
        connections = self.broker.admission.connections
        if not is_broker and connections.is_full(CallClass.CLIENT):
            self._make_room(CallClass.CLIENT, ACTIVE_CONNECTION_S)
            if connections.is_full(CallClass.CLIENT) and connections.is_full(CallClass.CONTROL):
                self._make_room(CallClass.CONTROL, _RESERVED_S)
        connections.opened(connection, is_broker=is_broker)
        self._uncounted.pop(connection, None)

    def _make_room(self, room: CallClass, idle_s: float) -> None:
        """Close the connection of ``room`` that has been idle longest, if for at least ``idle_s``."""
        connections, horizon = self.broker.admission.connections, self.loop.time() - idle_s
        idle = [
            (since, each)
            for each in self._connections
            if (since := each.idle_since) is not None and since <= horizon and connections.room_of(each) is room
        ]
        if idle:
            min(idle, key=lambda entry: entry[0])[1].say_goodbye()

    def _check(self) -> None:
        now = self.loop.time()
        for connection in list(self._connections):
            connection.check(now)
        for handshake in [each for each, since in self._handshakes.items() if now - since >= _HANDSHAKE_S]:
            self._end_handshake(handshake, f"it took longer than {_HANDSHAKE_S:g} s")
        if self.access.tls is not None and self.access.tls.is_due:
            self.loop.run_in_executor(None, self.access.tls.current)
        self._checking = self.loop.call_later(_CHECK_S, self._check)
