"""The periodic work of a broker's logs, with a directory check.

Invariant: A failure of the work is logged and the work continues. The broker stops only if its last directory, or that
of the metadata, has failed.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Final

from millrace.errors import MillraceError, StorageError
from millrace_broker.log.manager import LogManager
from millrace_broker.runtime import Executors, cancel_and_wait

_logger: Final = logging.getLogger(__name__)

_TICK_S: Final = 1.0


def check_directories(logs: LogManager, metadata_directory: Path | None) -> None:
    """Raise ``StorageError`` when no directory works, or when that of the metadata (None: elsewhere) has failed."""
    failed = logs.failed_directories()
    metadata = failed.get(metadata_directory) if metadata_directory is not None else None
    if metadata is not None:
        raise StorageError(f"the log directory with the metadata has failed: {metadata.message}")
    if not logs.has_directories:
        reasons = "; ".join(error.message for error in failed.values())
        raise StorageError(f"all log directories have failed: {reasons}")


class PeriodicWork:
    """Flushes, retention, rolling and the check of directories, every second. For the event loop's thread."""

    def __init__(
        self,
        logs: LogManager,
        executors: Executors,
        *,
        metadata_directory: Path | None,
        disks_failed: Callable[[], Awaitable[None]],
        fail: Callable[[MillraceError], None],
    ) -> None:
        """``disks_failed`` is awaited after new failures of directories, ``fail`` stops the broker."""
        self._logs: Final = logs
        self._executors: Final = executors
        self._metadata_directory: Final = metadata_directory
        self._disks_failed: Final = disks_failed
        self._fail: Final = fail
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Start the work."""
        self._task = asyncio.create_task(self._run(), name="millrace-tick")

    async def close(self) -> None:
        """Stop the work; a running thread finishes first."""
        await cancel_and_wait(self._task)

    async def _run(self) -> None:
        told_failed = frozenset(self._logs.failed_directories())
        while True:
            await asyncio.sleep(_TICK_S)
            try:
                await self._executors.run_io(self._logs.tick)
                check_directories(self._logs, self._metadata_directory)
                failed = frozenset(self._logs.failed_directories())
                if failed - told_failed:
                    await self._disks_failed()
                    told_failed = failed
            except StorageError as error:
                self._fail(error)
                return
            except Exception:
                _logger.exception("the log's periodic work failed and is tried again")
