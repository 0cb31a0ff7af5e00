"""Processes of the demo: one broker and one Spark application.

Invariants:

* a process started here outlives the demo by a moment at most, even if the demo is killed with -9, because the kernel
  sends it SIGKILL when its parent dies (Linux);
* every process inherits the locked file ``demo.lock``, so the next demo starts only after the last process of the
  previous one has ended. Two writers on one checkpoint would break exactly-once.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Final

from millrace.errors import EnvironmentProblemError, MillraceError
from millrace_streams.demo.stages import StageEvent, StageReader
from pyspark_millrace.environment.session import spark_submit_command

_START_SECONDS_MAX: Final = 60.0
_LOCK_SECONDS_MAX: Final = 60.0
_STOP_SECONDS_MAX: Final = 30.0
_WATCH_SECONDS: Final = 0.25
_TAIL_LINES: Final = 15
_PR_SET_PDEATHSIG: Final = 1
_SHORT_LIVED_JVM: Final = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""The JVM runs for half a minute, in which its optimising compiler takes more time than it saves."""
_LISTENING: Final = re.compile(r"listening on (\S+)")


class DemoLock:
    """Lock that allows only one demo in ``work_dir``.

    Every process of the demo inherits the lock's file descriptor.
    """

    def __init__(self, work_dir: Path) -> None:
        """Wait at most a minute for the processes of an interrupted demo to end.

        Raises ``EnvironmentProblemError`` if another demo is still running there.
        """
        self._file = (work_dir / "demo.lock").open("w")
        deadline = time.monotonic() + _LOCK_SECONDS_MAX
        while True:
            try:
                fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise EnvironmentProblemError(
                        f"another demo is running in {work_dir}: stop it, or choose --work-dir"
                    ) from None
            time.sleep(0.1)

    @property
    def descriptor(self) -> int:
        """Descriptor that child processes inherit."""
        return self._file.fileno()


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningBroker:
    """Broker process of the demo, with the broker's address."""

    bootstrap_servers: str
    process: subprocess.Popen[bytes]
    log_path: Path

    def check(self, seconds: float = 0) -> None:
        """Raise ``EnvironmentProblemError`` with the end of its log if it has died, or dies within ``seconds``."""
        status = _wait(self.process, seconds)
        if status is not None:
            raise EnvironmentProblemError(
                f"the broker has stopped (exit code {status}); run the demo again and it continues. "
                f"The end of {self.log_path}:\n{_tail(self.log_path)}"
            )


@contextmanager
def running_broker(work_dir: Path, lock: DemoLock) -> Iterator[RunningBroker]:
    """Run a broker on a free loopback port with its data in ``work_dir/broker``.

    Raises ``EnvironmentProblemError`` with the broker's log if it does not start, and in place of a ``MillraceError``
    if it has died.
    """
    log_path = work_dir / "logs" / "broker.log"
    command = [sys.executable, "-m", "millrace.cli.main", "broker", "--data-dir", str(work_dir / "broker")]
    with log_path.open("w") as log:
        process = _start([*command, "--listen", "127.0.0.1:0"], log=log, lock=lock)
    try:
        address = _await_address(process, log_path)
        broker = RunningBroker(bootstrap_servers=address, process=process, log_path=log_path)
        try:
            yield broker
        except MillraceError:
            # The error may be a consequence of the broker's death.
            broker.check(_WATCH_SECONDS)
            raise
    finally:
        _stop(process)


def _await_address(process: subprocess.Popen[bytes], log_path: Path) -> str:
    deadline = time.monotonic() + _START_SECONDS_MAX
    while time.monotonic() < deadline:
        found = _LISTENING.search(log_path.read_text(errors="replace"))
        if found:
            return found[1]
        if process.poll() is not None:
            break
        time.sleep(0.02)
    raise EnvironmentProblemError(f"the broker did not start:\n{_tail(log_path)}")


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningSpark:
    """Spark process of the demo. Its queries start with ``begin``."""

    process: subprocess.Popen[bytes]
    log_path: Path
    begin_path: Path
    reader: StageReader

    def begin(self) -> None:
        """Let the queries start, after the topics are loaded."""
        self.begin_path.touch()

    def events(self, broker: RunningBroker) -> Iterator[StageEvent]:
        """Yield the events of all stages until the process ends.

        Raises ``EnvironmentProblemError`` with the end of the log if the process fails, or with the end of the broker's
        log if the broker has died.
        """
        status = None
        while status is None:
            status = _wait(self.process, _WATCH_SECONDS)
            broker.check()
            yield from self.reader.read()
        if status != 0:
            raise EnvironmentProblemError(
                f"Spark failed (exit code {status}); the end of {self.log_path}:\n{_tail(self.log_path)}"
            )


@contextmanager
def running_spark(
    work_dir: Path, lock: DemoLock, *, broker: RunningBroker, topology: Path, topics: Sequence[str]
) -> Iterator[RunningSpark]:
    """Start the demo's Spark process, which starts its session at once and its queries with ``begin``."""
    log_path, progress, begin = (work_dir / "logs" / name for name in ("spark.log", "progress.jsonl", "begin"))
    for old in (progress, begin):
        old.unlink(missing_ok=True)
    settings = {
        "spark.ui.enabled": "false",
        "spark.log.level": "WARN",
        "spark.driver.extraJavaOptions": _SHORT_LIVED_JVM,
        # Spark creates this folder, used or not; by default in the current directory.
        "spark.sql.warehouse.dir": str(work_dir / "spark-warehouse"),
    }
    script = Path(__file__).with_name("pipeline.py")
    words = pipeline_arguments(
        broker.bootstrap_servers, work_dir, topology=topology, topics=topics, begin=begin, progress=progress
    )
    with log_path.open("a") as log:
        process = _start(spark_submit_command(script, *words, conf=settings), log=log, lock=lock)
    try:
        yield RunningSpark(process=process, log_path=log_path, begin_path=begin, reader=StageReader(progress))
    finally:
        _stop(process)


def pipeline_arguments(
    bootstrap_servers: str, work_dir: Path, *, topology: Path, topics: Sequence[str], begin: Path, progress: Path
) -> list[str]:
    """Return the command line of ``pipeline.py``."""
    options = [
        ("--bootstrap-servers", bootstrap_servers),
        ("--work-dir", str(work_dir)),
        ("--topology", str(topology)),
        *(("--topic", topic) for topic in topics),
        ("--begin", str(begin)),
        ("--progress", str(progress)),
    ]
    return [word for option in options for word in option]


def _wait(process: subprocess.Popen[bytes], seconds: float) -> int | None:
    """Return the exit code, or None if the process has not ended after ``seconds``."""
    try:
        return process.wait(seconds)
    except subprocess.TimeoutExpired:
        return None


def _start(command: Sequence[str], *, log: IO[str], lock: DemoLock) -> subprocess.Popen[bytes]:
    # Spark searches for Python data sources with the Python of this variable, not with spark.pyspark.python.
    variables = {**os.environ, "PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}
    return subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=subprocess.STDOUT,
        env=variables,
        pass_fds=[lock.descriptor],
        preexec_fn=_die_with_parent if sys.platform == "linux" else None,
    )


def _die_with_parent() -> None:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _stop(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is not None:
        return
    process.terminate()
    if _wait(process, _STOP_SECONDS_MAX) is None:
        process.kill()
        process.wait()


def _tail(path: Path) -> str:
    return "\n".join(path.read_text(errors="replace").splitlines()[-_TAIL_LINES:])
