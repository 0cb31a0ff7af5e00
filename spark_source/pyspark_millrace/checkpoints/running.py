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
