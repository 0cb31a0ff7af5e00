"""Broker with its listeners, which start and stop together."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Final, Self

from millrace.config.broker import BrokerConfig
from millrace.config.listeners import Listener, ListenerProtocol
from millrace.coordination import SessionStore
from millrace.errors import MillraceError
from millrace_broker.broker import Broker
from millrace_broker.listeners.listener_set import ListenerSet
from millrace_broker.log import Files
from millrace_broker.log.recovery_threads import Progress
from millrace_broker.opening import open_broker
from millrace_broker.runtime import Clock

if TYPE_CHECKING:
    from millrace_broker.metrics import MetricsListener

_logger = logging.getLogger(__name__)

_GRACE_S: Final = 5.0
"""The time for calls in progress to end when the server stops."""


class BrokerServer:
    """One broker and its listeners. Call ``start`` and ``stop`` in the same event loop, or use a context manager."""

    broker: Broker
    """The broker, once started."""

    def __init__(
        self,
        config: BrokerConfig,
        *,
        clock: Clock | None = None,
        files: Files | None = None,
        store: SessionStore | None = None,
    ) -> None:
        """Prepare a broker. ``open_broker`` documents the parameters."""
        self._config: Final = config
        self._clock: Final = clock
        self._files: Final = files
        self._store: Final = store
        self.listeners: Final = ListenerSet(config)
        self._metrics: MetricsListener | None = None
        self._is_started = False
        self._metrics_port = 0

    @property
    def ports(self) -> Mapping[str, int]:
        """The ports of the listeners by their names, once started."""
        return self.listeners.ports

    @property
    def port(self) -> int:
        """Port of the first listener for Kafka's framing, once started."""
        return self.address.port

    @property
    def address(self) -> Listener:
        """Address of the first listener for Kafka's framing, once started."""
        return self._address_of(ListenerProtocol.KAFKA)

    @property
    def grpc_address(self) -> Listener:
        """Address of the first listener for gRPC, once started."""
        return self._address_of(ListenerProtocol.GRPC)

    def _address_of(self, protocol: ListenerProtocol) -> Listener:
        config, addresses = self.broker.config, self.listeners.addresses()
        return next(address for name, address in addresses.items() if config.protocol_of(name) is protocol)

    @property
    def metrics_port(self) -> int:
        """The port for metrics, once started; 0 if there is none."""
        return self._metrics_port

    async def start(self, on_progress: Progress | None = None) -> None:
        """Recover the data and start to answer calls.

        Raises ``EnvironmentProblemError`` or ``InvalidConfigError``, and then releases everything. ``on_progress`` gets
        the numbers of loaded and of all logs, from another thread.
        """
        try:
            self.listeners.bind()  # first: if an address is taken, the data is not opened
            broker = await open_broker(
                self._config,
                endpoints=self.listeners.endpoints,
                clock=self._clock,
                files=self._files,
                store=self._store,
                on_progress=on_progress,
            )
        except BaseException:
            await self._stop_listening(0)
            raise
        self.broker = broker
        try:
            await self._serve(broker)
        except BaseException:
            await self._stop_listening(0)
            await broker.close()
            raise
        self._is_started = True
        _logger.info(
            "broker %d of cluster %s listens at %s",
            self._config.broker_id,
            self.cluster_id,
            ", ".join(f"{name}://{address}" for name, address in self.listeners.addresses().items()),
        )

    async def _serve(self, broker: Broker) -> None:
        await self.listeners.prepare(broker.config)
        broker.live_config.add_check(self.listeners.check)
        broker.live_config.subscribe(lambda config: broker.executors.on_loop(self.listeners.take_config, config))
        self._serve_metrics()
        # In a cluster, the controller calls a broker once it is announced. A single broker is its own controller. It
        # is announced before it serves, so that its clients find leaders.
        if not self._config.is_clustered:
            await broker.announce()
        await self.listeners.start(broker, broker.member.advertise)
        if self._config.is_clustered:
            await broker.announce()

    @property
    def cluster_id(self) -> str:
        """The cluster's id, once started."""
        return self.broker.cluster_id

    async def failed(self) -> MillraceError:
        """Wait for a fatal failure, and return it. The caller must then stop the server."""
        return await self.broker.failure.wait()

    async def stop(self) -> None:
        """Refuse new calls, let calls in progress end, and close the data cleanly. A second call does nothing."""
        if not self._is_started:
            return
        self._is_started = False
        await self.broker.leave()
        await self._stop_listening(_GRACE_S)
        await self.broker.close()
        _logger.info("broker %d has stopped", self._config.broker_id)

    def _serve_metrics(self) -> None:
        if self._config.metrics_port < 0:
            return
        from millrace_broker.metrics import MetricsListener, metrics_access

        host = next(iter(self._config.listener_addresses.values())).host
        access = metrics_access(self._config, host)
        metrics = MetricsListener(self.broker.statistics, access)
        self._metrics_port = metrics.serve(host, self._config.metrics_port)
        self._metrics = metrics
        scheme = "http" if access.tls is None else "https"
        _logger.info("metrics are served at %s://%s:%d/metrics", scheme, host, self._metrics_port)

    async def _stop_listening(self, grace_s: float) -> None:
        stopping: list[Awaitable[None]] = [self.listeners.stop(grace_s)]
        if self._metrics is not None:
            stopping.append(asyncio.to_thread(self._metrics.close))
        await asyncio.gather(*stopping)

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()
