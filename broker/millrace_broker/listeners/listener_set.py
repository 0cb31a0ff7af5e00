"""Listeners of one broker.

Listeners are added, removed and given other certificates while the broker runs. Kafka's classes are ``SocketServer``
and ``DynamicListenerConfig``.

Invariants

- A name in ``ports`` has a listener that is bound.
- ``endpoints`` is the present content of ``advertised.listeners``. It changes in place, in the event loop's thread.
- A listener keeps its address, its protocol and its security protocol as long as it exists.
- A change that ``check`` accepted is made, except if another process takes an address in between. This is logged.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Awaitable, Callable, Mapping
from typing import Final

from millrace.config.broker import BrokerConfig
from millrace.config.listener_options import METRICS
from millrace.config.listeners import Listener, ListenerProtocol
from millrace.errors import InvalidConfigError, MillraceError
from millrace_broker.broker import Broker
from millrace_broker.kafka_api import KafkaState, kafka_calls
from millrace_broker.listeners.grpc_server import GrpcListener, check_grpc
from millrace_broker.listeners.tcp_listener import TcpListener
from millrace_broker.network.peers import PeerListener
from millrace_broker.security import ListenerAccess, check_authorizer, check_plaintext

_logger: Final = logging.getLogger(__name__)

_GRACE_S: Final = 5.0
"""Time in which calls in progress must end when their listener is removed."""

Advertise = Callable[[Mapping[str, Listener], BrokerConfig], Awaitable[None]]
"""Changes the addresses in the broker's registration."""


class ListenerSet:
    """Listeners of one broker. For the event loop's thread, except ``check``."""

    def __init__(self, config: BrokerConfig) -> None:
        """Prepare the listeners of ``config``."""
        state = KafkaState(config)
        self._calls: Final = kafka_calls(state)
        self._on_close: Final = state.connection_closed
        self._config = config
        self.by_name: Final[dict[str, TcpListener | GrpcListener]] = {}
        """The present listeners. One that could not be bound is there until it is stopped."""
        self._broker: Broker | None = None
        self._advertise: Advertise | None = None
        self._changing: Final = asyncio.Lock()
        self._stopping: Final[set[asyncio.Task[None]]] = set()
        self._tasks: Final[set[asyncio.Task[None]]] = set()
        self.ports: Final[dict[str, int]] = {}
        """Ports of the listeners by their names."""
        self.endpoints: Final[dict[str, Listener]] = {}
        """Advertised addresses by the names of the listeners."""

    def addresses(self) -> dict[str, Listener]:
        """Return the addresses of the listeners, with their actual ports, in the order of ``listeners``."""
        configured = self._config.listener_addresses
        return {name: configured[name]._replace(port=self.ports[name]) for name in configured if name in self.ports}

    # --- start and stop --------------------------------------------------------------------------------------

    def bind(self) -> None:
        """Bind all listeners. Raises ``EnvironmentProblemError`` and ``InvalidConfigError``."""
        check_plaintext(self._config)
        check_authorizer(self._config)
        for name in self._config.listener_addresses:
            self._bind(name)
        self._renew_endpoints()

    async def prepare(self, config: BrokerConfig) -> None:
        """Change to the listeners of ``config``, the file with dynamic options, before the start.

        A listener that only dynamic options name may be missing, which is logged. Otherwise an address in use would
        prevent the start of the broker, and only a running broker can delete the options. Raises
        ``InvalidConfigError`` if a listener of the file cannot have its security.
        """
        problems = await self._change(config)
        for name, error in problems.items():
            if name in self.by_name:
                raise error

    async def start(self, broker: Broker, advertise: Advertise) -> None:
        """Start to answer calls. Raises ``EnvironmentProblemError``."""
        async with self._changing:
            await self.prepare(broker.config)
            self._broker, self._advertise = broker, advertise
            for listener in self.by_name.values():
                await listener.start(broker)

    async def stop(self, grace_s: float) -> None:
        """Refuse new calls, let calls in progress end, and cancel the remaining ones after ``grace_s``."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await asyncio.gather(*self._stopping, *(listener.stop(grace_s) for listener in self.by_name.values()))

    # --- changes ---------------------------------------------------------------------------------------------

    def check(self, before: BrokerConfig, after: BrokerConfig) -> None:
        """Raise ``InvalidConfigError`` if the listeners of a running broker cannot become those of ``after``.

        The check reads the key stores, and binds added addresses for a moment. Call it in the administration thread.
        """
        _check_between_brokers(before, after)
        check_plaintext(after)
        check_authorizer(after)
        if after.metrics_port >= 0 and before.security_of(METRICS) != after.security_of(METRICS):
            raise InvalidConfigError("listener.name.metrics.* of metrics.port needs a restart of the broker")
        released = _removed(before, after).values()
        for name, address in after.listener_addresses.items():
            if name not in before.listener_addresses:
                _check_security(name, after)
                if address not in released:
                    _check_free(name, address)
                continue
            _check_kept(name, before, after)
            if before.security_of(name) != after.security_of(name):
                _check_security(name, after)

    def take_config(self, config: BrokerConfig) -> None:
        """Apply another configuration, after the ones before."""
        task = asyncio.create_task(self._take(config), name="millrace-listeners")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _take(self, config: BrokerConfig) -> None:
        async with self._changing:
            if self._advertise is None or self._broker is None:
                return  # ``start`` applies the configuration in force
            self._broker.client_quotas.connections.take_config(config)
            advertised = dict(self.endpoints)
            await self._change(config)
            if advertised != self.endpoints:
                await self._advertise(self.endpoints, config)

    async def _change(self, config: BrokerConfig) -> dict[str, MillraceError]:
        """Change to the listeners of ``config``. Return the problems by the names of the listeners, and log them.

        A listener that cannot be added is missing afterwards, and the others are as configured.
        """
        before, self._config = self._config, config
        removed = _removed(before, config)
        stopping = [self._remove(name) for name in removed if name in self.by_name]
        if any(each.port and each in removed.values() for each in config.listener_addresses.values()):
            await asyncio.gather(*stopping)  # an added listener has the address of a removed one
        problems: dict[str, MillraceError] = {}
        for name in config.listener_addresses:
            try:
                if name not in self.by_name:
                    await self._add(name)
                elif before.security_of(name) != config.security_of(name):
                    self.by_name[name].take_access(await asyncio.to_thread(ListenerAccess, config, name))
                    _logger.info("listener %s has other security options for new connections", name)
            except MillraceError as error:
                _logger.error("listener %s cannot be as configured: %s", name, error.message)
                problems[name] = error
        self._renew_endpoints()
        return problems

    async def _add(self, name: str) -> None:
        try:
            self._bind(name)
            if self._broker is not None:
                await self.by_name[name].start(self._broker)
        except MillraceError:
            if name in self.by_name:
                self._remove(name)
            raise

    def _remove(self, name: str) -> asyncio.Task[None]:
        _logger.info("listener %s is removed", name)
        self.ports.pop(name, None)
        task = asyncio.create_task(self.by_name.pop(name).stop(_GRACE_S), name=f"millrace-stop-{name}")
        self._stopping.add(task)
        task.add_done_callback(self._stopping.discard)
        return task

    def _bind(self, name: str) -> None:
        config = self._config
        listener: TcpListener | GrpcListener
        if config.protocol_of(name) is ListenerProtocol.KAFKA:
            listener = TcpListener(config, name, self._calls, self._on_close)
        else:
            listener = GrpcListener(config, name)
        self.by_name[name] = listener  # it is stopped also if it cannot be bound
        self.ports[name] = listener.bind(config.listener_addresses[name])

    def _renew_endpoints(self) -> None:
        self.endpoints.clear()
        for name, address in self._config.advertised_addresses.items():
            if name in self.ports:
                host = socket.getfqdn() if address.is_on_all_interfaces else address.host
                self.endpoints[name] = Listener(host, address.port or self.ports[name])


def _removed(before: BrokerConfig, after: BrokerConfig) -> dict[str, Listener]:
    """Return the addresses of listeners that ``after`` has no more."""
    kept = after.listener_addresses
    return {name: address for name, address in before.listener_addresses.items() if name not in kept}


def _check_security(name: str, config: BrokerConfig) -> None:
    """Raise ``InvalidConfigError`` if the security of a listener cannot be as configured. Read its stores."""
    access = ListenerAccess(config, name)
    if config.protocol_of(name) is ListenerProtocol.GRPC:
        check_grpc(access, name)
    if name in (config.inter_broker_listener, config.control_plane_listener):
        PeerListener.of(config, name)


def _check_between_brokers(before: BrokerConfig, after: BrokerConfig) -> None:
    """Raise ``InvalidConfigError`` if brokers would call each other by another listener than before."""
    for option, old, new in (
        ("inter.broker.listener.name", before.inter_broker_listener, after.inter_broker_listener),
        ("control.plane.listener.name", before.control_plane_listener, after.control_plane_listener),
    ):
        if old != new:
            raise InvalidConfigError(
                f"brokers call each other by listener {old}, and with these options by {new}: keep {old} in listeners "
                f"and advertised.listeners, set {option}={old} in the properties file, or restart the broker"
            )


def _check_kept(name: str, before: BrokerConfig, after: BrokerConfig) -> None:
    """Raise ``InvalidConfigError`` if a listener would change in a way that needs a restart."""
    for what, old, new in (
        ("address", before.listener_addresses[name], after.listener_addresses[name]),
        ("security protocol", before.security_protocol_of(name), after.security_protocol_of(name)),
        ("protocol", before.protocol_of(name), after.protocol_of(name)),
    ):
        if old != new:
            raise InvalidConfigError(
                f"the {what} of listener {name} is {old}, and {new} needs a restart of the broker: restart it, or "
                "replace the listener by one of another name"
            )
    if after.protocol_of(name) is not ListenerProtocol.GRPC:
        return
    if before.security_of(name).ssl_client_auth != after.security_of(name).ssl_client_auth:
        raise InvalidConfigError(
            f"ssl.client.auth of listener {name}, which has the protocol grpc, needs a restart of the broker"
        )


def _check_free(name: str, address: Listener) -> None:
    """Raise ``InvalidConfigError`` if an address cannot be bound."""
    try:
        with socket.create_server(
            (address.host, address.port),
            family=socket.AF_INET6 if ":" in address.host else socket.AF_INET,
            reuse_port=False,
        ):
            return
    except OSError as error:
        raise InvalidConfigError(
            f"cannot listen at {name}://{address} ({error}): name another address of this host in listeners"
        ) from None
