"""Real broker inside another program, for tests and notebooks.

The broker runs in a thread with its own event loop, listens on loopback, and keeps real files. Tests therefore see the
behaviour of ``millrace broker``.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from concurrent.futures import Future
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from millrace.config.base import option_name
from millrace.config.broker import BrokerConfig
from millrace.config.listeners import Listener, listeners_at
from millrace_broker.server import BrokerServer


class EmbeddedBroker:
    """Broker in a thread of this process.

    The broker runs from ``__enter__`` (or ``start``) to ``__exit__`` (or ``stop``). Keyword arguments set options by
    the field names of ``BrokerConfig`` (``num_partitions=4``). The dict ``options`` sets them by Kafka's names
    (``{"log.retention.ms": "1000"}``). Port 0 takes a free port. After ``stop`` the broker can be started again with
    the same data and another free port.
    """

    def __init__(
        self, data_dir: Path | str, port: int = 0, options: dict[str, Any] | None = None, **fields: Any
    ) -> None:
        named = {option_name(name): value for name, value in fields.items()}
        self._config: Final = BrokerConfig.load(
            {
                "log.dirs": str(data_dir),
                "listeners": listeners_at(Listener("127.0.0.1", port)),
                **named,
                **(options or {}),
            }
        )
        self._thread: threading.Thread | None = None
        self.server: BrokerServer

    @property
    def port(self) -> int:
        """The port for the clients of Kafka and of millrace."""
        return self.server.port

    @property
    def metrics_port(self) -> int:
        """The port for metrics; 0 if there is none."""
        return self.server.metrics_port

    @property
    def bootstrap_servers(self) -> str:
        """``bootstrap.servers`` of the clients of Kafka and of millrace: ``127.0.0.1:port``."""
        return str(self.server.address)

    @property
    def grpc_address(self) -> str:
        """The address for gRPC, such as ``127.0.0.1:50051``."""
        return str(self.server.grpc_address)

    def start(self) -> Self:
        """Start the broker. Return when it answers calls. Raises the errors of ``BrokerServer.start``."""
        started: Future[None] = Future()
        self._thread = threading.Thread(
            target=lambda: asyncio.run(self._serve(started)), name="millrace-broker", daemon=True
        )
        self._thread.start()
        started.result()
        return self

    def stop(self) -> None:
        """Shut down cleanly. A second call does nothing."""
        if self._thread is not None:
            with contextlib.suppress(RuntimeError):  # its loop is closed, because the broker stopped by itself
                self._loop.call_soon_threadsafe(self._stopping.set)
            self._thread.join()
            self._thread = None

    async def _serve(self, started: Future[None]) -> None:
        self._loop = asyncio.get_running_loop()
        self._stopping = asyncio.Event()
        self.server = BrokerServer(self._config)
        try:
            await self.server.start()
        except BaseException as error:  # noqa: BLE001 - raised again in the thread that called start
            self._thread = None
            started.set_exception(error)
            return
        started.set_result(None)
        failed = asyncio.create_task(self.server.failed())
        failed.add_done_callback(lambda _: self._stopping.set())
        await self._stopping.wait()
        failed.cancel()
        await self.server.stop()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
