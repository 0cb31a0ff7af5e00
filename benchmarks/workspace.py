"""Folder of the benchmarks, and the processes that they start.

Invariants: one benchmark run at a time holds the folder's lock. ``Workspace`` ends every started process by its own pid
before it closes, the last started one first.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import signal
import socket
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO

from benchmarks import imports

STOP_SECONDS_MAX = 60


class BenchmarkError(Exception):
    """A failed measurement. The message names the failed process and shows the end of its log."""


class Workspace:
    """The folder of JARs, server data and logs of one run.

    The folder is ``$MILLRACE_CACHE/benchmarks`` (``~/.cache/millrace/benchmarks``).
    """

    def __init__(self, root: Path | None = None) -> None:
        cache = Path(os.environ.get("MILLRACE_CACHE") or Path.home() / ".cache" / "millrace")
        self.root = (root or cache / "benchmarks").absolute()
        self.root.mkdir(parents=True, exist_ok=True)
        self._lock: IO[str] | None = None

    def __enter__(self) -> Workspace:
        lock = (self.root / ".lock").open("w")
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            lock.close()
            raise BenchmarkError(f"another benchmark run holds {self.root}/.lock: wait until it has ended") from None
        self._lock = lock
        return self

    def __exit__(self, *_: object) -> None:
        if self._lock:
            self._lock.close()

    def folder(self, name: str, *, empty: bool = False) -> Path:
        """Return a folder of this name, and create it if necessary. ``empty`` removes its content."""
        path = self.root / name
        if empty:
            shutil.rmtree(path, ignore_errors=True)
        path.mkdir(parents=True, exist_ok=True)
        return path

    def log(self, name: str) -> Path:
        """Return the log file of a process of this name."""
        return self.folder("logs") / f"{name}.log"


def free_port() -> int:
    """Return a port of the loopback interface at which no process listens at the moment."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def start(command: Sequence[str | Path], log: Path, **options: object) -> subprocess.Popen[str]:
    """Start a process in a session of its own, so that Ctrl-C reaches it only through us.

    stderr goes to ``log``, and so does stdout unless ``options`` (of ``subprocess.Popen``) say otherwise. Python
    processes may keep compiled code, as they do by default, because a usual start does not compile all code again.
    """
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    environment |= imports.environment_of(log)
    with log.open("w") as output:
        defaults: dict[str, object] = {"stdin": subprocess.DEVNULL, "stdout": output, "env": environment}
        return subprocess.Popen(  # type: ignore[call-overload, no-any-return]
            [str(part) for part in command], stderr=output, text=True, start_new_session=True, **(defaults | options)
        )


def stop(process: subprocess.Popen[str]) -> None:
    """Ask the process to end, and kill it if it has not ended after a minute."""
    if process.poll() is None:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(STOP_SECONDS_MAX)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


@contextlib.contextmanager
def running(command: Sequence[str | Path], log: Path, **options: object) -> Iterator[subprocess.Popen[str]]:
    """Start a process for the duration of the block."""
    process = start(command, log, **options)
    try:
        yield process
    finally:
        stop(process)


def tail(log: Path, lines: int = 20) -> str:
    """Return the end of a log for error messages, without the frames of Java's stack traces, which hide the message."""
    if not log.exists():
        return "(no log)"
    text = log.read_text(errors="replace").splitlines()
    return "\n".join([line for line in text if not line.startswith("\tat ")][-lines:])
