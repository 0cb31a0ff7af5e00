"""Calls from this broker to other brokers, and their addresses.

Calls travel as frames, which cost a fraction of gRPC. The port for frames is requested over gRPC. If the broker has no
such port, or it cannot be reached, calls travel over gRPC.

Invariants

- A connection has one call at a time. There are as many connections as there ever were concurrent calls.
- Before any other call, the broker has confirmed its id and its cluster.
- The process at the port for frames is the broker that named the port. With gRPC only, its identity is requested again
  when frames are tried again.
- A broker that returns with another address or another port for frames gets new connections.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any, Final, TypeVar

import grpc
import grpc.aio
from google.protobuf.message_factory import GetMessageClass

from millrace.config.broker import Listener
from millrace.errors import BrokerUnavailableError, MillraceError, RequestTimedOutError
from millrace.protocol import millrace_pb2 as pb
from millrace.protocol.frames import API_KEYS
from millrace.protocol.status import error_from_rpc
from millrace_broker.network.peer_connection import PeerConnection, Received, connect
from millrace_broker.network.sockets import is_refused
from millrace_broker.quotas import BROKER_SOFTWARE_NAME, parked

_logger: Final = logging.getLogger(__name__)

_SERVICE: Final = pb.DESCRIPTOR.services_by_name["Broker"]
_GREETING_S: Final = 5.0
_GRPC_FOR_S: Final = 60.0
"""How long calls travel over gRPC before unavailable frames are tried again."""
_RECONNECT_MS: Final = 100
_OPTIONS: Final[list[tuple[str, Any]]] = [
    ("grpc.max_send_message_length", -1),
    ("grpc.max_receive_message_length", -1),
    ("grpc.initial_reconnect_backoff_ms", _RECONNECT_MS),
    ("grpc.min_reconnect_backoff_ms", _RECONNECT_MS),
    ("grpc.max_reconnect_backoff_ms", 1_000),
    ("grpc.enable_http_proxy", 0),
    ("grpc.enable_retries", 0),
    # Otherwise all channels of a process to one broker share one connection and its flow control.
    ("grpc.use_local_subchannel_pool", 1),
]

T = TypeVar("T")


class Peers:
    """Calls to other brokers by their ids, in the event loop's thread.

    ``cluster_id`` is the cluster of the called brokers. It is empty until this broker knows its own cluster.
    ``client_id`` names this broker to the called ones.
    """

    def __init__(self, cluster_id: str = "", client_id: str = "") -> None:
        self.cluster_id = cluster_id
        self._client_id: Final = client_id
        self._addresses: Final[dict[int, Listener]] = {}
        self._peers: Final[dict[tuple[int, Listener], _Peer]] = {}

    def know(self, broker_id: int, host: str, port: int) -> None:
        """Set the address of a broker."""
        self._addresses[broker_id] = Listener(host, port)

    def forget(self, broker_id: int) -> None:
        """Remove a broker's address. Its connections are kept, because the broker may return there."""
        self._addresses.pop(broker_id, None)

    async def call(
        self,
        broker_id: int,
        name: str,
        request: Any,
        *,
        timeout_s: float,
        decode: Callable[[Received], T] | None = None,
    ) -> T:
        """Call ``name`` of the ``Broker`` service of a broker. ``decode`` converts the answer's bytes.

        Raises the broker's error, ``RequestTimedOutError``, and ``BrokerUnavailableError`` if the broker cannot be
        reached or another broker answers at its address.
        """
        peer = self._peer(broker_id)
        message = request.SerializeToString()
        try:
            async with asyncio.timeout(timeout_s):
                with parked():
                    body = await peer.call(name, message, timeout_s)
        except TimeoutError:
            raise RequestTimedOutError(
                f"broker {broker_id} at {peer.address} did not answer {name} within {timeout_s * 1000:.0f} ms"
            ) from None
        return decode(body) if decode is not None else _message_class(name).FromString(body)

    def _peer(self, broker_id: int) -> _Peer:
        address = self._addresses.get(broker_id)
        if address is None:
            raise BrokerUnavailableError(f"broker {broker_id} is not alive, as far as this broker knows")
        peer = self._peers.get((broker_id, address))
        if peer is None:
            peer = self._peers[broker_id, address] = _Peer(broker_id, address, self.cluster_id, self._client_id)
        return peer

    def address(self, broker_id: int) -> Listener | None:
        """Return the address of a broker; None if it is unknown."""
        return self._addresses.get(broker_id)

    async def stay_connected(self, broker_id: int, connected: Callable[[], None]) -> bool:
        """Hold a connection without calls until it ends. Call ``connected`` once it is open.

        Return True if the connection broke, False if the broker announced its end. Raises ``BrokerUnavailableError`` if
        the broker cannot be reached or has no port for frames.
        """
        return await self._peer(broker_id).stay_connected(connected)

    async def refuses(self, broker_id: int) -> bool:
        """Return whether new connections to all ports of a broker are refused, so that no process listens there."""
        return self.address(broker_id) is not None and await self._peer(broker_id).refuses()

    async def close(self) -> None:
        """Close the connections. Calls in flight fail."""
        peers = list(self._peers.values())
        self._peers.clear()
        for peer in peers:
            await peer.close()


class _Peer:
    """Connections to one broker at one address."""

    def __init__(self, broker_id: int, address: Listener, cluster_id: str, client_id: str) -> None:
        self._id: Final = broker_id
        self.address: Final = address
        self._cluster_id: Final = cluster_id
        self._client_id: Final = client_id
        user_agent = f"{BROKER_SOFTWARE_NAME} {client_id}" if client_id else BROKER_SOFTWARE_NAME
        self._channel: Final = grpc.aio.insecure_channel(
            str(address), options=[*_OPTIONS, ("grpc.primary_user_agent", user_agent)]
        )
        self._idle: Final[list[PeerConnection]] = []
        self._busy: Final[set[PeerConnection]] = set()
        self._finding: Final = asyncio.Lock()
        self._broker: pb.ApiVersionsResponse | None = None
        self._grpc_until = float("-inf")
        self._is_told = False
        self._is_closed = False

    async def call(self, name: str, message: bytes, timeout_s: float) -> Received:
        """Return the answer's bytes. Raises the broker's error, ``BrokerUnavailableError``."""
        connection = self._idle_connection() or await self._connected()
        if connection is None:
            return await self._over_grpc(name, message, timeout_s)
        self._busy.add(connection)
        try:
            return await connection.call(API_KEYS[name], message, timeout_s)
        finally:
            self._busy.discard(connection)
            if connection.is_usable and not self._is_closed:
                self._idle.append(connection)

    async def stay_connected(self, connected: Callable[[], None]) -> bool:
        """See ``Peers.stay_connected``."""
        async with asyncio.timeout(_GREETING_S):
            connection = await self._connected()
        if connection is None:
            raise BrokerUnavailableError(f"the broker at {self.address} does not answer frames")
        self._busy.add(connection)
        try:
            connected()
            return await connection.broke()
        finally:
            self._busy.discard(connection)
            connection.close()

    async def refuses(self) -> bool:
        """See ``Peers.refuses``."""
        frame_port = 0 if self._broker is None else self._broker.frame_port
        ports = {self.address.port, frame_port} - {0}
        return all([await is_refused(self.address.host, each, _GREETING_S) for each in sorted(ports)])

    def _idle_connection(self) -> PeerConnection | None:
        while self._idle:
            connection = self._idle.pop()
            if connection.is_usable:
                return connection
        return None

    async def _connected(self) -> PeerConnection | None:
        """Return a new connection, or None if calls must use gRPC.

        Raises ``BrokerUnavailableError`` if no broker answers.
        """
        if asyncio.get_running_loop().time() < self._grpc_until:
            return None
        known = self._broker
        if known is not None:
            try:
                return await self._connect(known)
            except (OSError, MillraceError) as error:
                _logger.debug("%s does not answer frames at the known port: %s", self.address, error)
        async with self._finding:  # a single request for all waiting calls
            if self._broker is known:
                answer = await self._over_grpc("ApiVersions", pb.ApiVersionsRequest().SerializeToString(), _GREETING_S)
                self._broker = self._checked(pb.ApiVersionsResponse.FromString(bytes(answer)))
        assert self._broker is not None
        try:
            return await self._connect(self._broker)
        except (OSError, MillraceError) as error:
            level = logging.WARNING if self._broker.frame_port else logging.DEBUG
            _logger.log(
                level, "calls to the broker at %s use gRPC, because it does not answer frames: %s", self.address, error
            )
            self._grpc_until = asyncio.get_running_loop().time() + _GRPC_FOR_S
            return None

    def _checked(self, found: pb.ApiVersionsResponse) -> pb.ApiVersionsResponse:
        """Return the answer if it is from the expected broker. Raises ``BrokerUnavailableError``."""
        if found.broker_id != self._id or self._cluster_id not in ("", found.cluster_id):
            message = (
                f"broker {found.broker_id} of cluster {found.cluster_id} answers at {self.address}, where broker "
                f"{self._id} should be: check advertised.listeners of both"
            )
            if not self._is_told:
                self._is_told = True
                _logger.warning("%s", message)
            raise BrokerUnavailableError(message)
        return found

    async def _connect(self, broker: pb.ApiVersionsResponse) -> PeerConnection:
        """Open a connection for frames.

        Raises ``OSError`` (including ``TimeoutError``), and ``MillraceError`` if another broker answers.
        """
        if not broker.frame_port:
            raise BrokerUnavailableError("it has no port for frames (frame.listener.port)")
        async with asyncio.timeout(_GREETING_S):
            connection, hello = await connect(self.address.host, broker.frame_port, self._client_id)
        if (hello.cluster_id, hello.broker_id) != (broker.cluster_id, broker.broker_id) or self._is_closed:
            connection.close()
            raise BrokerUnavailableError(f"broker {hello.broker_id} of cluster {hello.cluster_id} answers there")
        return connection

    async def _over_grpc(self, name: str, message: bytes, timeout_s: float) -> bytes:
        try:
            # Without serializers, the method takes and returns bytes, which the stubs do not declare.
            method: Any = self._channel.unary_unary(f"/{_SERVICE.full_name}/{name}", None, None)
            answer: bytes = await method(message, timeout=timeout_s)
        except grpc.aio.AioRpcError as error:
            raise error_from_rpc(error) from error
        return answer

    async def close(self) -> None:
        """Close the connections. Calls in flight fail."""
        self._is_closed = True
        for connection in (*self._idle, *self._busy):
            connection.close()
        await self._channel.close(None)


def _message_class(name: str) -> Any:
    return GetMessageClass(_SERVICE.methods_by_name[name].output_type)
