"""``millrace broker``, which runs a broker in the foreground until SIGTERM or SIGINT.

Imports are few and deferred, because the first acknowledged write should take less than a second from the command.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import importlib
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from millrace.errors import UsageError
from millrace_broker.runtime.malloc import keep_heaps_small
from millrace_broker.runtime.spinning_loop import spinning_loop

if TYPE_CHECKING:
    from millrace.config.broker import BrokerConfig
    from millrace_broker.log.recovery_threads import Progress

_LOG_FORMAT = "%(asctime)s %(levelname)-7s %(name)s: %(message)s"
_PROGRESS_INTERVAL_S = 1.0

DEFAULT_FILE = "broker.properties"
"""Properties file in millrace's ``conf`` directory that is loaded if no file is named."""
_OF_LISTENERS: Final = ("advertised.listeners", "listener.protocol.map", "inter.broker.listener.name")
"""Options of the file that belong to its listeners, which ``--listen`` replaces."""


def broker(
    config: Annotated[
        Path | None, typer.Option(help="Properties file. The default is millrace's broker.properties.")
    ] = None,
    data_dir: Annotated[
        str | None, typer.Option(help="Data directory (log.dirs). The default is ./millrace-data.")
    ] = None,
    listen: Annotated[
        str | None,
        typer.Option(
            metavar="HOST:PORT",
            help="Address for clients of Kafka and millrace, port 0: any free port. gRPC gets a free port. "
            "It replaces listeners.",
        ),
    ] = None,
    option: Annotated[
        list[str] | None,
        typer.Option("--option", "-o", metavar="NAME=VALUE", help="Broker option. It overrides the file. Repeatable."),
    ] = None,
    log_level: Annotated[str, typer.Option(help="DEBUG, INFO, WARNING or ERROR.")] = "INFO",
    until_input_ends: Annotated[
        bool,
        typer.Option(
            "--until-input-ends", help="End when standard input ends, so that the broker ends with its parent."
        ),
    ] = False,
) -> None:
    """Run a broker, alone or as a member of a cluster.

    A broker alone keeps its metadata beside its data. With zookeeper.connect it joins the cluster on that ZooKeeper.

    The broker prints one line when it is ready, logs to standard error, and stops cleanly on SIGTERM or Ctrl-C.

    Examples:

      millrace broker

      millrace broker --data-dir /srv/millrace --listen 127.0.0.1:9092 -o log.retention.hours=24
    """
    level = logging.getLevelNamesMapping().get(log_level.upper())
    if level is None:
        raise UsageError(f"--log-level {log_level}: expected DEBUG, INFO, WARNING or ERROR")
    keep_heaps_small()
    os.environ.setdefault("ARROW_DEFAULT_MEMORY_POOL", "system")  # Arrow's own allocator would keep 3 MB more
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # gRPC failures become exceptions, and we log those
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")  # the search reads the metadata of all packages
    logging.basicConfig(level=level, format=_LOG_FORMAT, stream=sys.stderr)
    _import_server()
    loaded = load_config(config, data_dir=data_dir, listen=listen, options=option or [])
    serving = _run(loaded, until_input_ends=until_input_ends)
    with asyncio.Runner(loop_factory=spinning_loop) as runner:
        runner.run(serving)


def _import_server() -> None:
    """Import the broker without garbage collections, which would look at 100,000 objects several times for nothing."""
    gc.disable()
    try:
        importlib.import_module("millrace_broker.server")
    finally:
        gc.freeze()
        gc.enable()


def load_config(config: Path | None, *, data_dir: str | None, listen: str | None, options: list[str]) -> BrokerConfig:
    """Build the configuration from the file, then ``-o``, then ``data_dir`` and ``listen``. Resolve its references.

    Raises ``InvalidConfigError`` and ``UsageError``.
    """
    from millrace.cli.paths import conf_dir
    from millrace.config.base import read_properties
    from millrace.config.broker import BrokerConfig
    from millrace.config.listeners import Listener, listeners_at
    from millrace.config.references import resolve_references

    values: dict[str, Any] = {**read_properties(config or conf_dir() / DEFAULT_FILE)}
    if listen is not None:
        for name in _OF_LISTENERS:
            values.pop(name, None)
    if options:
        from millrace.cli.options import name_value

        given = dict(name_value(text, "-o") for text in options)
        refuse_broker_secrets(given)
        values.update(given)
    if data_dir is not None:
        values["log.dirs"] = data_dir
    if listen is not None:
        try:
            values["listeners"] = listeners_at(Listener.parse(listen))
        except ValueError as error:
            raise UsageError(f"--listen {error}") from None
    return BrokerConfig.load(resolve_references(values))


def refuse_broker_secrets(options: Mapping[str, str]) -> None:
    """Raise ``UsageError`` if an option of the command line is a secret, and no reference to one."""
    from millrace.cli.secret_options import refuse_secrets
    from millrace.config.broker import BrokerConfig

    refuse_secrets(options, "-o", is_secret=BrokerConfig.is_secret, file="in the file of --config")


async def _run(config: BrokerConfig, *, until_input_ends: bool) -> None:
    from millrace_broker.server import BrokerServer

    loop = asyncio.get_running_loop()
    stopping = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopping.set)
    if until_input_ends:
        # A thread, because an event loop cannot watch files and /dev/null.
        reading = threading.Thread(
            target=_await_end_of_input, args=(loop, stopping), name="millrace-input", daemon=True
        )
        reading.start()
    server = BrokerServer(config)
    with _progress() as progress:
        await server.start(progress)
    # The objects of a started broker live until it stops. A garbage collection over them would only delay calls.
    gc.collect()
    gc.freeze()
    print(f"millrace broker {config.broker_id} listening on {server.address}", flush=True)  # noqa: T201 - the output
    failed = asyncio.create_task(server.failed())
    stopped = asyncio.create_task(stopping.wait())
    await asyncio.wait((failed, stopped), return_when=asyncio.FIRST_COMPLETED)
    await server.stop()
    stopped.cancel()
    if failed.done():
        raise failed.result()
    failed.cancel()


def _await_end_of_input(loop: asyncio.AbstractEventLoop, stopping: asyncio.Event) -> None:
    """Read standard input to its end, then let the broker stop."""
    while os.read(sys.stdin.fileno(), 4096):
        pass
    with contextlib.suppress(RuntimeError):  # the broker has stopped already, and closed its event loop
        loop.call_soon_threadsafe(stopping.set)


@contextlib.contextmanager
def _progress() -> Iterator[Progress]:
    """Show the progress of log loading, as a bar on a terminal and as log lines elsewhere."""
    if not sys.stderr.isatty():
        yield _ProgressLines()
        return
    from millrace.cli.output import progress  # imported only for a terminal

    with progress() as bar:
        task = bar.add_task("loading logs", total=None, rate="")
        yield lambda done, total, name: bar.update(task, completed=done, total=total)


class _ProgressLines:
    """Periodic log lines about a long start."""

    def __init__(self) -> None:
        self._said_s = time.monotonic()
        self._has_said = False

    def __call__(self, done: int, total: int, name: str) -> None:
        now_s = time.monotonic()
        if now_s - self._said_s >= _PROGRESS_INTERVAL_S or (self._has_said and done == total):
            self._said_s, self._has_said = now_s, True
            logging.getLogger(__name__).info("loaded %d of %d logs (%s)", done, total, name)
