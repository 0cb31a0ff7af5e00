"""Calls from this broker to other brokers, and their addresses.

Calls use Kafka's framing, at the listener ``inter.broker.listener.name`` of the other broker. Those between the
controller and brokers use ``control.plane.listener.name``.

Invariants

- A connection has one call at a time. There are as many connections as there ever were concurrent calls.
- Before any other call on a connection, the broker has confirmed its id and its cluster.
- A broker that returns with another address gets new connections.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any, Final, NamedTuple, Self, TypeVar

from google.protobuf.message_factory import GetMessageClass

from millrace.config.broker import BrokerConfig
from millrace.config.listeners import Listener
from millrace.config.security_options import ListenerSecurity, SaslMechanism
from millrace.errors import (
    BrokerUnavailableError,
    InvalidConfigError,
    InvalidRequestError,
    RequestTimedOutError,
    SaslAuthenticationError,
)
from millrace.protocol import millrace_pb2 as pb
from millrace.protocol.frames import API_KEYS
from millrace.security import Reloading, client_context
from millrace.security.sasl import CredentialsSource, credentials_source
from millrace_broker.network.peer_connection import PeerConnection, Received, connect
from millrace_broker.network.sockets import is_refused
from millrace_broker.quotas import parked

_logger: Final = logging.getLogger(__name__)

_SERVICE: Final = pb.DESCRIPTOR.services_by_name["Broker"]
_GREETING_S: Final = 5.0

CONTROLLER_CALLS: Final = frozenset(
    ("LeaderAndIsr", "StopReplica", "UpdateMetadata", "AlterPartition", "ControlledShutdown")
)
"""Calls between the controller and brokers, which use ``control.plane.listener.name``."""

T = TypeVar("T")
_Connect = Callable[[str, int], Awaitable[tuple[PeerConnection, pb.HelloResponse]]]


class PeerListener(NamedTuple):
    """Listener of other brokers, with this broker's credentials for it.

    ``tls`` has this broker's certificate if the listener has TLS. ``credentials`` has this broker's user if the
    listener has SASL.
    """

    name: str
    tls: Reloading[ssl.SSLContext] | None = None
    credentials: CredentialsSource | None = None
    security: ListenerSecurity | None = None
    """The options from which ``tls`` and ``credentials`` were made."""

    @classmethod
    def of(cls, config: BrokerConfig, name: str) -> Self:
        """Return a listener of brokers with this configuration. Raises ``InvalidConfigError``."""
        security = config.security_of(name)
        tls = None
        if config.security_protocol_of(name).has_tls:
            tls = Reloading(f"listener {name} between brokers", security, partial(client_context, security))
        return cls(name, tls, _credentials(config, name), security)

    def renewed(self, config: BrokerConfig) -> PeerListener:
        """Return the same listener with another configuration. Raises ``InvalidConfigError``."""
        if self.security is None or self.security == config.security_of(self.name):
            return self
        return PeerListener.of(config, self.name)


class Peers:
    """Calls to other brokers by their ids, in the event loop's thread.

    ``listener`` is that by which brokers call each other, and ``control_plane`` that of ``CONTROLLER_CALLS``, if they
    have one of their own. ``cluster_id`` is the cluster of the called brokers. It is empty until this broker knows its
    own cluster. ``client_id`` names this broker to the called ones.
    """

    def __init__(
        self,
        listener: PeerListener,
        cluster_id: str = "",
        client_id: str = "",
        control_plane: PeerListener | None = None,
    ) -> None:
        self.cluster_id = cluster_id
        self._client_id: Final = client_id
        self._listener = listener
        self._control_plane = control_plane or listener
        self._endpoints: Final[dict[int, Mapping[str, Listener]]] = {}
        self._peers: Final[dict[tuple[int, Listener], _Peer]] = {}

    @classmethod
    def of(cls, config: BrokerConfig) -> Self:
        """Return the calls of a broker with this configuration, without addresses yet.

        Raises ``InvalidConfigError`` if the security of the listener between brokers cannot be as configured.
        """
        control_plane = None
        if config.control_plane_listener != config.inter_broker_listener:
            control_plane = PeerListener.of(config, config.control_plane_listener)
        return cls(
            PeerListener.of(config, config.inter_broker_listener),
            client_id=f"broker-{config.broker_id}",
            control_plane=control_plane,
        )

    def take_config(self, config: BrokerConfig) -> None:
        """Use the security of the listeners between brokers in ``config`` for new connections. From any thread.

        Security that cannot be as configured is logged, and the earlier one kept.
        """
        try:
            listener = self._listener.renewed(config)
            is_shared = self._control_plane is self._listener
            control_plane = listener if is_shared else self._control_plane.renewed(config)
        except InvalidConfigError as error:
            _logger.error("brokers are called with the earlier security: %s", error.message)
            return
        self._listener, self._control_plane = listener, control_plane

    async def _connect(self, listener: str, host: str, port: int) -> tuple[PeerConnection, pb.HelloResponse]:
        """Connect to a listener of another broker, with its present security."""
        found = self._control_plane if listener == self._control_plane.name else self._listener
        return await connect(host, port, client_id=self._client_id, tls=found.tls, credentials=found.credentials)

    def know(self, broker_id: int, endpoints: Mapping[str, Listener]) -> None:
        """Set the addresses of a broker, by the names of its listeners."""
        self._endpoints[broker_id] = endpoints

    def forget(self, broker_id: int) -> None:
        """Remove a broker's address. Its connections are kept, because the broker may return there."""
        self._endpoints.pop(broker_id, None)

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
        peer = self._peer(broker_id, self._control_plane if name in CONTROLLER_CALLS else self._listener)
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

    def _peer(self, broker_id: int, listener: PeerListener) -> _Peer:
        if broker_id not in self._endpoints:
            raise BrokerUnavailableError(f"broker {broker_id} is not alive, as far as this broker knows")
        address = self._endpoints[broker_id].get(listener.name)
        if address is None:
            raise BrokerUnavailableError(
                f"broker {broker_id} advertises no listener {listener.name}, by which brokers call each other: give "
                "all brokers of the cluster the same listeners, or set inter.broker.listener.name"
            )
        peer = self._peers.get((broker_id, address))
        if peer is None:
            how = partial(self._connect, listener.name)
            peer = self._peers[broker_id, address] = _Peer(broker_id, address, self.cluster_id, how)
        return peer

    def address(self, broker_id: int) -> Listener | None:
        """Return the address at which a broker is called; None if it is unknown."""
        return self._endpoints.get(broker_id, {}).get(self._listener.name)

    async def stay_connected(self, broker_id: int, connected: Callable[[], None]) -> bool:
        """Hold a connection without calls until it ends. Call ``connected`` once it is open.

        Return True if the connection broke, False if the broker announced its end. Raises ``BrokerUnavailableError`` if
        the broker cannot be reached.
        """
        return await self._peer(broker_id, self._listener).stay_connected(connected)

    async def refuses(self, broker_id: int) -> bool:
        """Return whether new connections to a broker are refused, so that no process listens there."""
        address = self.address(broker_id)
        return address is not None and await is_refused(address.host, address.port, _GREETING_S)

    async def close(self) -> None:
        """Close the connections. Calls in flight fail."""
        peers = list(self._peers.values())
        self._peers.clear()
        for peer in peers:
            await peer.close()


def _credentials(config: BrokerConfig, listener: str) -> CredentialsSource | None:
    """Return this broker's user at the listener between brokers. Raises ``InvalidConfigError`` if there is none."""
    if not (config.security_protocol_of(listener).has_sasl and config.is_clustered):
        return None
    security, mechanism = config.security_of(listener), config.sasl_mechanism_inter_broker_protocol
    login = security.login
    username, password = login.get("username", ""), login.get("password", "")
    if mechanism is SaslMechanism.GSSAPI:
        if not (login.get("keyTab") and login.get("principal")):
            raise InvalidConfigError(
                f"brokers call each other by listener {listener} with Kerberos: set listener.name.{listener.lower()}."
                "gssapi.sasl.jaas.config with keyTab and principal of this broker"
            )
    elif mechanism is SaslMechanism.OAUTHBEARER:
        _check_tokens(config, listener)
    elif not (username and password):
        raise InvalidConfigError(
            f"brokers call each other by listener {listener} with SASL: set "
            f"listener.name.{listener.lower()}.sasl.jaas.config with username and password of this broker"
        )
    if mechanism not in security.mechanisms:
        raise InvalidConfigError(
            f"sasl.mechanism.inter.broker.protocol={mechanism} is not among sasl.enabled.mechanisms of listener "
            f"{listener}: add it there, or choose one of them"
        )
    return credentials_source(mechanism, username, password, security, login)


def _check_tokens(config: BrokerConfig, listener: str) -> None:
    """Raise ``InvalidConfigError`` unless the options of the listener are enough for brokers with tokens."""
    security = config.security_of(listener)
    try:
        security.check_oauth_login(security.login, is_encrypted=config.security_protocol_of(listener).has_tls)
    except ValueError as error:
        raise InvalidConfigError(f"brokers call each other by listener {listener} with SASL: {error}") from None
    if not config.broker_principals:
        raise InvalidConfigError(
            "sasl.mechanism.inter.broker.protocol=OAUTHBEARER needs broker.principals: the names that the brokers' "
            "tokens have"
        )


class _Peer:
    """Connections to one broker at one address."""

    def __init__(self, broker_id: int, address: Listener, cluster_id: str, connect: _Connect) -> None:
        self._id: Final = broker_id
        self.address: Final = address
        self._cluster_id: Final = cluster_id
        self._connect: Final = connect
        self._idle: Final[list[PeerConnection]] = []
        self._busy: Final[set[PeerConnection]] = set()
        self._is_told = False
        self._is_closed = False

    async def call(self, name: str, message: bytes, timeout_s: float) -> Received:
        """Return the answer's bytes. Raises the broker's error, ``BrokerUnavailableError``."""
        connection = self._idle_connection() or await self._connected()
        self._busy.add(connection)
        try:
            return await connection.call(API_KEYS[name], message, timeout_s)
        finally:
            self._busy.discard(connection)
            if connection.is_usable and not self._is_closed:
                self._idle.append(connection)

    async def stay_connected(self, connected: Callable[[], None]) -> bool:
        """See ``Peers.stay_connected``."""
        connection = await self._connected()
        self._busy.add(connection)
        try:
            connected()
            return await connection.broke()
        finally:
            self._busy.discard(connection)
            connection.close()

    def _idle_connection(self) -> PeerConnection | None:
        while self._idle:
            connection = self._idle.pop()
            if connection.is_usable:
                return connection
        return None

    async def _connected(self) -> PeerConnection:
        """Return a new connection. Raises ``BrokerUnavailableError`` if the expected broker does not answer."""
        try:
            async with asyncio.timeout(_GREETING_S):
                connection, hello = await self._connect(*self.address)
        except (OSError, InvalidRequestError, SaslAuthenticationError) as error:  # TimeoutError is an OSError
            reason = f"no greeting within {_GREETING_S:.0f} s" if isinstance(error, TimeoutError) else str(error)
            raise BrokerUnavailableError(f"broker {self._id} does not answer at {self.address}: {reason}") from error
        try:
            self._check(hello)
        except BrokerUnavailableError:
            connection.close()
            raise
        return connection

    def _check(self, hello: pb.HelloResponse) -> None:
        """Raise ``BrokerUnavailableError`` if another broker answers than the expected one."""
        if self._is_closed:
            raise BrokerUnavailableError("this broker stops")
        if hello.broker_id == self._id and self._cluster_id in ("", hello.cluster_id):
            return
        message = (
            f"broker {hello.broker_id} of cluster {hello.cluster_id} answers at {self.address}, where broker "
            f"{self._id} should be: check advertised.listeners of both"
        )
        if not self._is_told:
            self._is_told = True
            _logger.warning("%s", message)
        raise BrokerUnavailableError(message)

    async def close(self) -> None:
        """Close the connections. Calls in flight fail."""
        self._is_closed = True
        for connection in (*self._idle, *self._busy):
            connection.close()


def _message_class(name: str) -> Any:
    return GetMessageClass(_SERVICE.methods_by_name[name].output_type)
