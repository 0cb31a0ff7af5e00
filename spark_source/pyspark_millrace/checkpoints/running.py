"""A lock by which a query shows that it runs.

Spark locks no checkpoint: two drivers may run one query, until one finds that the other has logged a batch. Where
``monitor`` is installed, the driver holds ``_millrace/lock`` in the checkpoint of each query that it runs. The system
gives the lock up when the process ends, however it ends.
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
"""Where we keep things in a checkpoint. Spark looks at the names that it knows and leaves others alone."""


class RunningLock:
    """The lock of one checkpoint, held until ``release``."""

    def __init__(self, file: IO[str]) -> None:
        self._file = file

    @classmethod
    def acquire(cls, checkpoint: Path, holder: str) -> RunningLock | None:
        """Take the lock; None if another has it. Raises ``OSError`` where the directory cannot be written."""
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
        """Give the lock up. May be called twice."""
        self._file.close()


class RunningLocks:
    """The locks of all queries that this process runs. Thread safe.

    A lock is held while any run of its query goes on: of a query that is started again at once Spark tells the start
    before the end of the run before.
    """

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._held: dict[Path, tuple[RunningLock, set[str]]] = {}

    def started(self, checkpoint: Path, run_id: str, holder: str) -> bool:
        """A run has begun; whether its checkpoint is locked now. Raises ``OSError`` as ``RunningLock.acquire`` does."""
        with self._guard:
            if checkpoint not in self._held:
                lock = RunningLock.acquire(checkpoint, holder)
                if lock is None:
                    return False
                self._held[checkpoint] = (lock, set())
            self._held[checkpoint][1].add(run_id)
            return True

    def ended(self, run_id: str) -> None:
        """A run has ended, if it is one of those."""
        with self._guard:
            for checkpoint, (lock, runs) in list(self._held.items()):
                runs.discard(run_id)
                if not runs:
                    lock.release()
                    del self._held[checkpoint]


@contextmanager
def not_running(checkpoint: Path) -> Iterator[None]:
    """Keep queries of ours out for a while. Raises ``UsageError`` if one runs."""
    try:
        lock = RunningLock.acquire(checkpoint, "millrace offsets reset")
    except OSError as error:
        raise EnvironmentProblemError(f"{checkpoint} cannot be written: {error.strerror}") from error
    if lock is None:
        raise UsageError(f"the query of {checkpoint} runs ({_holder(checkpoint)}): stop it first")
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
