"""Lock that shows that a query runs.

Spark does not lock checkpoints: two drivers may run one query until one of them finds a batch logged by the other. With
``monitor``, the driver holds ``_millrace/lock`` in the checkpoint of each query that it runs. The operating system
releases the lock when the process ends, also after a crash.
"""

from __future__ import annotations

import fcntl
import json
import os
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Final

from millrace.errors import EnvironmentProblemError, UsageError

OWN_DIRECTORY: Final = "_millrace"
"""Directory of millrace's files in a checkpoint. Spark ignores names that it does not know."""


class RunningLock:
    """Lock of one checkpoint, held until ``release``."""

    def __init__(self, file: IO[str]) -> None:
        self._file = file

    @classmethod
    def acquire(cls, checkpoint: Path, holder: str) -> RunningLock | None:
        """Acquire the lock; returns None if it is held already. Raises ``OSError`` if the directory is not writable."""
        (checkpoint / OWN_DIRECTORY).mkdir(exist_ok=True)
        file = (checkpoint / OWN_DIRECTORY / "lock").open("a+", encoding="utf-8")
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.close()
            return None
        file.truncate(0)
        json.dump({"holder": holder, "host": socket.gethostname(), "pid": os.getpid()}, file)
        file.flush()
        return cls(file)

    def release(self) -> None:
        """Release the lock. Idempotent."""
        self._file.close()


class RunningLocks:
    """Locks of all queries of this process. Thread safe.

    A lock is held while any run of its query is active. When a query is restarted at once, Spark reports the new start
    before the end of the previous run.
    """

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._held: dict[Path, tuple[RunningLock, set[str]]] = {}

    def started(self, checkpoint: Path, run_id: str, holder: str) -> bool:
        """Record the start of a run; returns whether its checkpoint is locked now. Raises ``OSError`` like
        ``acquire``.
        """
        with self._guard:
            if checkpoint not in self._held:
                lock = RunningLock.acquire(checkpoint, holder)
                if lock is None:
                    return False
                self._held[checkpoint] = (lock, set())
            self._held[checkpoint][1].add(run_id)
            return True

    def ended(self, run_id: str) -> None:
        """Record the end of a run; ignores unknown runs."""
        with self._guard:
            for checkpoint, (lock, runs) in list(self._held.items()):
                runs.discard(run_id)
                if not runs:
                    lock.release()
                    del self._held[checkpoint]


@contextmanager
def not_running(checkpoint: Path) -> Iterator[None]:
    """Hold the lock of a checkpoint for the block. Raises ``UsageError`` if its query runs."""
    try:
        lock = RunningLock.acquire(checkpoint, "millrace offsets reset")
    except OSError as error:
        raise EnvironmentProblemError(f"{checkpoint} cannot be written: {error.strerror}") from error
    if lock is None:
        raise UsageError(f"the query of {checkpoint} is running ({_holder(checkpoint)}): stop it first")
    try:
        yield
    finally:
        lock.release()


def _holder(checkpoint: Path) -> str:
    try:
        told = json.loads((checkpoint / OWN_DIRECTORY / "lock").read_text(encoding="utf-8"))
        return f"{told['holder']}, process {told['pid']} on {told['host']}"
    except (OSError, ValueError, KeyError):
        return "in another process"
