"""A broker on the network: storage, listeners, and their life together."""

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
from millrace_broker.listeners.frames import FrameListener
from millrace_broker.listeners.grpc_server import add_handlers, bind, make_server
from millrace_broker.log import Files
from millrace_broker.log.starting import Progress
from millrace_broker.opening import open_broker
from millrace_broker.runtime import Clock

if TYPE_CHECKING:
    from millrace_broker.metrics import MetricsListener

_logger = logging.getLogger(__name__)

_GRACE_S: Final = 5.0
"""How long calls in progress may take to end when the server stops."""


class BrokerServer:
    """One broker and its listeners. ``start`` and ``stop`` in the same event loop, or use it as a context manager."""

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
        """See ``open_broker``."""
        self._config: Final = config
        self._clock: Final = clock
        self._files: Final = files
        self._has_controller: Final = has_controller
        self._frames: FrameListener | None = None
        self._metrics: MetricsListener | None = None
        self._is_started = False
        self._port = self._frame_port = self._metrics_port = 0

    @property
    def port(self) -> int:
        """The port listened at, once started."""
        return self._port

    @property
    def frame_port(self) -> int:
        """The port at which frames are answered, once started; 0: none."""
        return self._frame_port

    @property
    def metrics_port(self) -> int:
        """The port at which metrics are served, once started; 0: none."""
        return self._metrics_port

    @property
    def address(self) -> Listener:
        """The address listened at, once started."""
        return Listener(self._config.listener.host, self._port)

    @property
    def data_directories(self) -> list[Path]:
        """Where the data is."""
        return [Path(name).expanduser().absolute() for name in self._config.log_directories]

    async def start(self, on_progress: Progress | None = None) -> None:
        """Recover the data and answer calls. Raises ``EnvironmentProblemError``; then nothing is left behind.

        ``on_progress`` is told of recovered and all logs, from another thread.
        """
        # The address first: where it is taken, the data is not even looked at.
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
        # A broker by itself is known before it is asked; in a cluster the controller speaks to it once it is known.
        if not self._config.is_clustered:
            await broker.announce()
        if self._frames is not None:
            await self._frames.start(broker)
        add_handlers(self._server, broker)
        await self._server.start()
        if self._config.is_clustered:
            await broker.announce()

    @property
    def cluster_id(self) -> str:
        """The cluster's id, once started."""
        return self.broker.cluster_id

    async def failed(self) -> MillraceError:
        """Wait until the broker cannot go on, and return why. It is to be stopped then."""
        return await self.broker.failure.wait()

    async def stop(self) -> None:
        """Refuse new calls, let those in progress end, close the data cleanly. Stopping again does nothing."""
        if not self._is_started:
            return
        self._is_started = False
        await self.broker.leave()
        await self._stop_listening(_GRACE_S)
        await self.broker.close()
        _logger.info("broker %d has stopped", self._config.broker_id)

    def _bind_frames(self) -> int:
        """Take the address for frames; returns the port that clients are told."""
        if self._config.frame_listener_port < 0:
            return 0
        self._frames = FrameListener(self._config)
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
    """What to tell clients when the listener is on all interfaces and nothing is advertised."""
    if host not in ("0.0.0.0", "::"):
        return host
    import socket

    return socket.getfqdn()
