"""Waits of tests, which end at their condition or without *progress*.

A wait fails when its *progress* stops. No wait has a fixed time, because a fixed time that suits one machine fails on
another, or beside a busy process. A wait here fails only when nothing that it can see has changed for ``STALL_S``. Give
it as ``progress`` a value that changes during the work. Examples are an end offset, the number of records so far, and
the size of a log file. For processes the CPU time that they used counts.

``STALL_S`` is also the timeout of calls that end on their own unless a component is broken: ``future.result(STALL_S)``.
``tests/unit/repository/test_waits.py`` refuses other timeouts, and sleeps, in tests.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import os
import subprocess
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

Result = TypeVar("Result")
STALL_S = 240.0
"""The time without any change after which a wait fails. A step takes seconds, or a minute on a starved machine."""

AN_HOUR_MS = 3_600_000
"""The timeout of a call under test if another event must end its wait. It is longer than any test runs."""

_LOOK_S = 0.5
"""The interval of checks of the progress, which may cost more than the condition."""
_WORK_S = 5.0
"""The CPU time that counts as progress of a process. An idle JVM uses less in ``STALL_S``."""


class Stall:
    """The limit of a wait in loops that act in each turn.

    stall = Stall("all records")
    while len(records) < count:
        stall.check(len(records))
        records += consumer.poll(10)
    """

    def __init__(self, what: str) -> None:
        self._what = what
        self._seen: Any = None
        self._since = time.monotonic()

    def check(self, progress: Any = None) -> None:
        """Restart the limit if ``progress`` has changed. Fail if it has not changed for ``STALL_S``."""
        now = time.monotonic()
        if progress != self._seen:
            self._seen, self._since = progress, now
        assert now - self._since < STALL_S, f"waited for {self._what}: no progress for {STALL_S:.0f} s ({progress!r})"


def eventually(
    is_true: Callable[[], Any], what: str = "it", *, progress: Callable[[], Any] | None = None, pause_s: float = 0.005
) -> Any:
    """Wait until a condition returns a true value, and return that. Fail when ``progress`` stops changing."""
    stall, progress = Stall(what), progress or (lambda: None)
    look_at = 0.0
    while not (found := is_true()):
        if (now := time.monotonic()) >= look_at:
            stall.check(progress())
            look_at = now + _LOOK_S
        time.sleep(pause_s)
    return found


async def eventually_async(is_true: Callable[[], Any], what: str = "it") -> Any:
    """Do as ``eventually`` in an event loop, whose other tasks run meanwhile.

    The condition may be a coroutine function.
    """
    stall = Stall(what)
    while True:
        found = is_true()
        if inspect.isawaitable(found):
            found = await found
        if found:
            return found
        stall.check()
        await asyncio.sleep(0.001)


def pause(seconds: float) -> None:
    """Let time pass between actions of clients or faults.

    A test varies this time, and never waits for an event by it.
    """
    time.sleep(seconds)


def exit_code(process: subprocess.Popen[Any], what: str = "a process to end") -> int:
    """Wait until a process has ended. The CPU time of it and its descendants counts as progress."""
    eventually(lambda: process.poll() is not None, what, progress=lambda: work_of(process.pid), pause_s=0.02)
    return process.returncode


def run_to_end(command: Sequence[object], input: str | None = None, **options: Any) -> subprocess.CompletedProcess[str]:
    """Run a command as ``subprocess.run`` does, and capture its output as text.

    It may run as long as it makes progress.
    """
    piped = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, **options}
    if input is not None:
        piped["stdin"] = subprocess.PIPE
    process = subprocess.Popen([str(part) for part in command], **piped)
    out, err = output_of(process, input)
    return subprocess.CompletedProcess(process.args, process.returncode, out, err)


def output_of(process: subprocess.Popen[str], input: str | None = None) -> tuple[str, str]:
    """Wait until a process ends, and return its piped output and errors. Its CPU time counts as progress."""
    return while_it_works(process, lambda: process.communicate(input), f"{process.args!r} to end")


def while_it_works(process: subprocess.Popen[Any], call: Callable[[], Result], what: str) -> Result:
    """Call a function that waits for a process, such as one that reads a line of its output.

    Kill a process without progress.
    """
    with ThreadPoolExecutor(1) as pool:
        done = pool.submit(call)
        try:
            eventually(done.done, what, progress=lambda: work_of(process.pid))
        except BaseException:
            process.kill()
            raise
        return done.result()


def work_of(pid: int) -> int:
    """Return the CPU time of a process and its descendants, in steps that only real work reaches."""
    parents: dict[int, int] = {}
    ticks: dict[int, int] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):  # it has ended meanwhile
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
                parents[int(entry.name)], ticks[int(entry.name)] = int(fields[1]), sum(map(int, fields[11:15]))
    members, more = {pid}, {pid}
    while more:
        more = {child for child, parent in parents.items() if parent in more}
        members |= more
    total = sum(ticks.get(member, 0) for member in members)
    return int(total / os.sysconf("SC_CLK_TCK") / _WORK_S)
