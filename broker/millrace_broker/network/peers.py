"""The way from this broker to the others: their addresses, and calls to them.

Calls go as frames, which cost a fraction of gRPC's; over gRPC a broker is asked where it answers frames, and called
where it answers none, or is not reached there.

Invariants

- A connection has one call at a time; there are as many as there ever were calls under way at once.
- Nothing is asked of a broker but who it is, until it has said that it is the one that is called, of this cluster.
- What answers at the port for frames is the broker that named the port. Over gRPC alone it is asked again who it is
  when frames are tried again.
- A broker that comes back under another address, or with another port for frames, gets other connections.
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
from millrace.protocol.status import error_from_rpc
from millrace_broker.network.peer_connection import PeerConnection, Received, connect
from millrace_broker.network.sockets import is_refused
from millrace_broker.quotas import BROKER_SOFTWARE_NAME, parked

_logger: Final = logging.getLogger(__name__)

_SERVICE: Final = pb.DESCRIPTOR.services_by_name["Broker"]
_GREETING_S: Final = 5.0
_GRPC_FOR_S: Final = 60.0
"""How long calls go over gRPC before frames are tried again where they cannot be had."""
_RECONNECT_MS: Final = 100
_OPTIONS: Final[list[tuple[str, Any]]] = [
    ("grpc.max_send_message_length", -1),
    ("grpc.max_receive_message_length", -1),
    ("grpc.initial_reconnect_backoff_ms", _RECONNECT_MS),
    ("grpc.min_reconnect_backoff_ms", _RECONNECT_MS),
    ("grpc.max_reconnect_backoff_ms", 1_000),
    ("grpc.enable_http_proxy", 0),
    ("grpc.primary_user_agent", BROKER_SOFTWARE_NAME),
    ("grpc.enable_retries", 0),
    # Otherwise all channels of a process to one broker share a connection, and its flow control.
    ("grpc.use_local_subchannel_pool", 1),
]

T = TypeVar("T")


class Peers:
    """Calls to other brokers by their ids. For the event loop's thread.

    ``cluster_id`` is whose brokers are called; empty until this broker knows its own cluster.
    """

    def __init__(self, cluster_id: str = "") -> None:
        self.cluster_id = cluster_id
        self._addresses: Final[dict[int, Listener]] = {}
        self._peers: Final[dict[tuple[int, Listener], _Peer]] = {}

    def know(self, broker_id: int, host: str, port: int) -> None:
        """A broker is reached there from now on."""
        self._addresses[broker_id] = Listener(host, port)

    def forget(self, broker_id: int) -> None:
        """A broker is gone; its connections are kept, for it may come back there."""
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
        """Call ``name`` of the ``Broker`` service at a broker; ``decode`` makes something of the answer's bytes.

        Raises the broker's error, ``RequestTimedOutError``, and ``BrokerUnavailableError`` when it cannot be reached,
        or somebody else is where it should be.
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
            raise BrokerUnavailableError(f"broker {broker_id} is not alive, as far as is known here")
        peer = self._peers.get((broker_id, address))
        if peer is None:
            peer = self._peers[broker_id, address] = _Peer(broker_id, address, self.cluster_id)
        return peer

    def address(self, broker_id: int) -> Listener | None:
        """Where a broker is reached; None if that is not known."""
        return self._addresses.get(broker_id)

    async def stay_connected(self, broker_id: int, connected: Callable[[], None]) -> bool:
        """Hold a connection without calls until it ends; ``connected`` is called once it is there.

        Returns true if the connection broke, false if the broker announced its end. Raises ``BrokerUnavailableError``
        when the broker is not reached, or answers no frames.
        """
        return await self._peer(broker_id).stay_connected(connected)

    async def refuses(self, broker_id: int) -> bool:
        """Whether nobody listens where a broker is reached, as new connections to all its ports show."""
        return self.address(broker_id) is not None and await self._peer(broker_id).refuses()

    async def close(self) -> None:
        """End the connections; calls under way fail."""
        peers = list(self._peers.values())
        self._peers.clear()
        for peer in peers:
            await peer.close()


class _Peer:
    """The ways to one broker at one address."""

    def __init__(self, broker_id: int, address: Listener, cluster_id: str) -> None:
        self._id: Final = broker_id
        self.address: Final = address
        self._cluster_id: Final = cluster_id
        self._channel: Final = grpc.aio.insecure_channel(str(address), options=_OPTIONS)
        self._idle: Final[list[PeerConnection]] = []
        self._busy: Final[set[PeerConnection]] = set()
        self._finding: Final = asyncio.Lock()
        self._broker: pb.ApiVersionsResponse | None = None
        self._grpc_until = float("-inf")
        self._is_told = False
        self._is_closed = False

    async def call(self, name: str, message: bytes, timeout_s: float) -> Received:
        """The answer's bytes. Raises the broker's error, ``BrokerUnavailableError``."""
        connection = self._idle_connection() or await self._connected()
        if connection is None:
            return await self._over_grpc(name, message, timeout_s)
        self._busy.add(connection)
        try:
            return await connection.call(name.encode(), message, timeout_s)
        finally:
            self._busy.discard(connection)
            if connection.is_usable and not self._is_closed:
                self._idle.append(connection)

    async def stay_connected(self, connected: Callable[[], None]) -> bool:
        """See ``Peers.stay_connected``."""
        async with asyncio.timeout(_GREETING_S):
            connection = await self._connected()
        if connection is None:
            raise BrokerUnavailableError(f"the broker at {self.address} answers no frames")
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
        """A new connection; None if it has to be gRPC. Raises ``BrokerUnavailableError`` when nobody answers."""
        if asyncio.get_running_loop().time() < self._grpc_until:
            return None
        known = self._broker
        if known is not None:
            try:
                return await self._connect(known)
            except (OSError, MillraceError) as error:
                _logger.debug("%s answers no frames at the port that was known: %s", self.address, error)
        async with self._finding:  # only one asks
            if self._broker is known:
                answer = await self._over_grpc("ApiVersions", pb.ApiVersionsRequest().SerializeToString(), _GREETING_S)
                self._broker = self._checked(pb.ApiVersionsResponse.FromString(bytes(answer)))
        assert self._broker is not None
        try:
            return await self._connect(self._broker)
        except (OSError, MillraceError) as error:
            level = logging.WARNING if self._broker.frame_port else logging.DEBUG
            _logger.log(level, "calls to the broker at %s go over gRPC, it answers no frames: %s", self.address, error)
            self._grpc_until = asyncio.get_running_loop().time() + _GRPC_FOR_S
            return None

    def _checked(self, found: pb.ApiVersionsResponse) -> pb.ApiVersionsResponse:
        """Who answers, if that is who is called. Raises ``BrokerUnavailableError``."""
        if found.broker_id != self._id or self._cluster_id not in ("", found.cluster_id):
            message = (
                f"broker {found.broker_id} of cluster {found.cluster_id} answers at {self.address}, where broker "
                f"{self._id} should be: look at advertised.listeners of both"
            )
            if not self._is_told:
                self._is_told = True
                _logger.warning("%s", message)
            raise BrokerUnavailableError(message)
        return found

    async def _connect(self, broker: pb.ApiVersionsResponse) -> PeerConnection:
        """Raises ``OSError`` (a ``TimeoutError``, too), and ``MillraceError`` when it is not that broker."""
        if not broker.frame_port:
            raise BrokerUnavailableError("it has no port for them (frame.listener.port)")
        async with asyncio.timeout(_GREETING_S):
            connection, hello = await connect(self.address.host, broker.frame_port)
        if (hello.cluster_id, hello.broker_id) != (broker.cluster_id, broker.broker_id) or self._is_closed:
            connection.close()
            raise BrokerUnavailableError(f"broker {hello.broker_id} of cluster {hello.cluster_id} answers there")
        return connection

    async def _over_grpc(self, name: str, message: bytes, timeout_s: float) -> bytes:
        try:
            # Without serializers bytes go out and come in; the stubs know nothing of that.
            method: Any = self._channel.unary_unary(f"/{_SERVICE.full_name}/{name}", None, None)
            answer: bytes = await method(message, timeout=timeout_s)
        except grpc.aio.AioRpcError as error:
            raise error_from_rpc(error) from error
        return answer

    async def close(self) -> None:
        """End the connections; calls under way fail."""
        self._is_closed = True
        for connection in (*self._idle, *self._busy):
            connection.close()
        await self._channel.close(None)


def _message_class(name: str) -> Any:
    return GetMessageClass(_SERVICE.methods_by_name[name].output_type)
