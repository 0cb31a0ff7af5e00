"""Broker on the network: storage and listeners, started and stopped together."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Final, Self

from millrace.config.broker import BrokerConfig, Listener
from millrace.errors import MillraceError
from millrace_broker.broker import Broker
from millrace_broker.listeners.grpc_server import add_handlers, bind, make_server
from millrace_broker.listeners.tcp_listener import TcpListener
from millrace_broker.log import Files
from millrace_broker.log.recovery_threads import Progress
from millrace_broker.opening import open_broker
from millrace_broker.runtime import Clock

if TYPE_CHECKING:
    from millrace_broker.metrics import MetricsListener

_logger = logging.getLogger(__name__)

_GRPC_LISTENER: Final = "PLAINTEXT"
"""Name of the listener for gRPC, as in ``listeners``."""
_FRAME_LISTENER: Final = "FRAMES"
"""Name of the listener at ``frame.listener.port``."""
_GRACE_S: Final = 5.0
"""How long calls in progress may take to end when the server stops."""


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
        has_controller: bool | None = None,
    ) -> None:
        """Prepare a broker. ``open_broker`` documents the parameters."""
        self._config: Final = config
        self._clock: Final = clock
        self._files: Final = files
        self._has_controller: Final = has_controller
        self._frames: TcpListener | None = None
        self._metrics: MetricsListener | None = None
        self._is_started = False
        self._port = self._frame_port = self._metrics_port = 0

    @property
    def port(self) -> int:
        """The listener's port, once started."""
        return self._port

    @property
    def frame_port(self) -> int:
        """The port for frames, once started; 0 if there is none."""
        return self._frame_port

    @property
    def metrics_port(self) -> int:
        """The port for metrics, once started; 0 if there is none."""
        return self._metrics_port

    @property
    def address(self) -> Listener:
        """The listener's address, once started."""
        return Listener(self._config.listener.host, self._port)

    @property
    def data_directories(self) -> list[Path]:
        """The data directories."""
        return [Path(name).expanduser().absolute() for name in self._config.log_directories]

    async def start(self, on_progress: Progress | None = None) -> None:
        """Recover the data and start to answer calls.

        Raises ``EnvironmentProblemError`` and then releases everything. ``on_progress`` gets the numbers of loaded and
        of all logs, from another thread.
        """
        # Bind first: if the address is taken, the data is not opened.
        self._server = make_server(self._config)
        self._port = bind(self._server, self._config.listener)
        try:
            frame_port = self._bind_frames()
            advertised = self._config.advertised
            broker = await open_broker(
                self._config,
                address=Listener(_reachable(advertised.host), advertised.port or self._port),
                frame_port=frame_port,
                clock=self._clock,
                files=self._files,
                has_controller=self._has_controller,
                on_progress=on_progress,
            )
        except BaseException:
            await self._stop_listening(None)
            raise
        self.broker = broker
        try:
            await self._serve(broker)
        except BaseException:
            await self._stop_listening(None)
            await broker.close()
            raise
        self._is_started = True
        _logger.info("broker %d of cluster %s listens at %s", self._config.broker_id, self.cluster_id, self.address)

    async def _serve(self, broker: Broker) -> None:
        self._serve_metrics()
        # A standalone broker is announced before it serves. In a cluster, the controller calls a broker once it is
        # announced.
        if not self._config.is_clustered:
            await broker.announce()
        if self._frames is not None:
            await self._frames.start(broker)
        add_handlers(self._server, broker, _GRPC_LISTENER)
        await self._server.start()
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

    def _bind_frames(self) -> int:
        """Bind the listener for frames. Return the port to advertise."""
        if self._config.frame_listener_port < 0:
            return 0
        self._frames = TcpListener(self._config, _FRAME_LISTENER)
        self._frame_port = self._frames.bind(Listener(self._config.listener.host, self._config.frame_listener_port))
        return self._config.advertised_frame_port or self._frame_port

    def _serve_metrics(self) -> None:
        if self._config.metrics_port < 0:
            return
        from millrace_broker.metrics import MetricsListener

        metrics = MetricsListener(self.broker.statistics)
        self._metrics_port = metrics.serve(self._config.listener.host, self._config.metrics_port)
        self._metrics = metrics
        _logger.info("metrics are served at http://%s:%d/metrics", self._config.listener.host, self._metrics_port)

    async def _stop_listening(self, grace_s: float | None) -> None:
        stopping: list[Awaitable[None]] = [self._server.stop(grace_s)]
        if self._frames is not None:
            stopping.append(self._frames.stop(grace_s or 0))
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


def _reachable(host: str) -> str:
    """Return the host to advertise if the listener is on all interfaces and no address is configured."""
    if host not in ("0.0.0.0", "::"):
        return host
    import socket

    return socket.getfqdn()
