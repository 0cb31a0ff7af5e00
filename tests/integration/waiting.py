"""Waits of tests: each ends when its condition holds, and fails when *progress* stops; none has a fixed time.

A fixed time that suits one machine fails on another, or beside a busy process. So a wait here fails only when nothing
that it can see has changed for ``STALL_S``. Give it what changes while the work goes on as ``progress``: an end offset,
the number of records so far, the size of a log file. For processes the CPU time that they used counts.

``STALL_S`` is also the timeout of calls that end on their own unless something is broken: ``future.result(STALL_S)``.
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
"""How long nothing may change before a wait fails. A step takes seconds; on a starved machine it may take a minute."""

AN_HOUR_MS = 3_600_000
"""What a call under test may wait where something else must end its wait: longer than any test runs."""

_LOOK_S = 0.5
"""How often the progress is looked at, which may cost more than the condition."""
_WORK_S = 5.0
"""CPU time that counts as progress of a process. An idle JVM uses less in ``STALL_S``."""


class Stall:
    """The limit of a wait, for loops that do something in each turn.

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
        """Begin the limit anew if ``progress`` has changed; fail if it has not for ``STALL_S``."""
        now = time.monotonic()
        if progress != self._seen:
            self._seen, self._since = progress, now
        assert now - self._since < STALL_S, f"waited for {self._what}: no progress for {STALL_S:.0f} s ({progress!r})"


def eventually(
    is_true: Callable[[], Any], what: str = "it", *, progress: Callable[[], Any] | None = None, pause_s: float = 0.005
) -> Any:
    """Wait until a condition gives something true, and return that; fail when ``progress`` stops changing."""
    stall, progress = Stall(what), progress or (lambda: None)
    look_at = 0.0
    while not (found := is_true()):
        if (now := time.monotonic()) >= look_at:
            stall.check(progress())
            look_at = now + _LOOK_S
        time.sleep(pause_s)
    return found


async def eventually_async(is_true: Callable[[], Any], what: str = "it") -> Any:
    """Do as ``eventually`` in an event loop, whose other tasks run meanwhile; the condition may be a coroutine's."""
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
    """Let time pass between what clients or faults do: a test varies that, and never waits for something by it."""
    time.sleep(seconds)


def exit_code(process: subprocess.Popen[Any], what: str = "a process to end") -> int:
    """Wait until a process has ended; CPU time that it and its descendants use counts as progress."""
    eventually(lambda: process.poll() is not None, what, progress=lambda: work_of(process.pid), pause_s=0.02)
    return process.returncode


def run_to_end(command: Sequence[object], input: str | None = None, **options: Any) -> subprocess.CompletedProcess[str]:
    """Run a command as ``subprocess.run`` does, with its output captured as text; it may take as long as it works."""
    piped = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, **options}
    if input is not None:
        piped["stdin"] = subprocess.PIPE
    process = subprocess.Popen([str(part) for part in command], **piped)
    out, err = output_of(process, input)
    return subprocess.CompletedProcess(process.args, process.returncode, out, err)


def output_of(process: subprocess.Popen[str], input: str | None = None) -> tuple[str, str]:
    """Wait until a process ends, and return its piped output and errors; its work counts as progress."""
    return while_it_works(process, lambda: process.communicate(input), f"{process.args!r} to end")


def while_it_works(process: subprocess.Popen[Any], call: Callable[[], Result], what: str) -> Result:
    """Call what waits for a process, such as reading a line of its output. Kill a process that works no more."""
    with ThreadPoolExecutor(1) as pool:
        done = pool.submit(call)
        try:
            eventually(done.done, what, progress=lambda: work_of(process.pid))
        except BaseException:
            process.kill()
            raise
        return done.result()


def work_of(pid: int) -> int:
    """The CPU time that a process and its descendants have used, in steps that only work takes."""
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
