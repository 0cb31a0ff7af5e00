"""The machine of the figures (Linux, from ``/proc``).

This module also measures the load by other processes.
"""

from __future__ import annotations

import os
import platform
import re
import subprocess
import sys
import time
from importlib.metadata import version
from pathlib import Path

_PROC = Path("/proc")
_TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")
_QUIET_FRACTION = 0.20
_QUIET_SECONDS = 2.0


def describe() -> str:
    """Describe the machine and the relevant versions in one line."""
    cpu = re.search(r"model name\s*: (.*)", (_PROC / "cpuinfo").read_text())
    memory = re.search(r"MemTotal:\s*(\d+) kB", (_PROC / "meminfo").read_text())
    java = subprocess.run(["java", "-version"], capture_output=True, text=True, check=True).stderr
    java_version = re.search(r'version "([^"]+)"', java)
    parts = [
        f"{os.cpu_count()} cores of {cpu[1].strip() if cpu else platform.machine()}",
        f"{round(int(memory[1]) / 2**20) if memory else '?'} GiB",
        f"Linux {platform.release()}",
        f"Python {platform.python_version()}",
        f"Java {java_version[1] if java_version else '?'}",
        f"pyspark {version('pyspark')}",
        f"pyarrow {version('pyarrow')}",
        f"grpcio {version('grpcio')}",
    ]
    return ", ".join(parts)


def wait_until_quiet(timeout_seconds: float) -> None:
    """Return once all CPUs together were under 20 % busy for two seconds. After ``timeout_seconds`` print a note and
    return (at once and silently for 0).

    The load average is unsuitable, because it contains our own last run for a minute.
    """
    if not timeout_seconds:
        return
    deadline = time.monotonic() + timeout_seconds
    while time.monotonic() < deadline:
        busy, total = _cpu_ticks()
        time.sleep(_QUIET_SECONDS)
        busy_after, total_after = _cpu_ticks()
        if (busy_after - busy) < _QUIET_FRACTION * (total_after - total):
            return
    print(f"  not quiet within {timeout_seconds:.0f} s, going on (load {os.getloadavg()[0]:.1f})", file=sys.stderr)


class CpuUse:
    """The CPU use while the block ran.

    ``own_seconds`` is the time of this process and its descendants, both servers included. Unlike wall time it shows
    the cost of a run also on a busy machine. ``other_cores`` is the use by all other processes, in cores.
    """

    def __enter__(self) -> CpuUse:
        self._start = (time.monotonic(), _cpu_ticks()[0], _own_ticks())
        self.own_seconds = self.other_cores = 0.0
        return self

    def __exit__(self, *_: object) -> None:
        started, busy_before, own_before = self._start
        seconds = time.monotonic() - started
        busy, own = _cpu_ticks()[0] - busy_before, _own_ticks() - own_before
        self.own_seconds = own / _TICKS_PER_SECOND
        self.other_cores = max(0.0, (busy - own) / _TICKS_PER_SECOND / max(seconds, 1e-3))


def private_bytes(pid: int, mapped_files_under: Path) -> int:
    """Return the memory of process ``pid`` alone, without its mappings of files below ``mapped_files_under``.

    The value is the sum of Private_Clean and Private_Dirty of ``/proc/<pid>/smaps``. A log or index file that only one
    process maps would count there, although its pages are page cache, which the kernel can reclaim.
    """
    total_kb, counted = 0, True
    for line in (_PROC / str(pid) / "smaps").read_text().splitlines():
        name, _, rest = line.partition(" ")
        if not name.endswith(":"):  # the head of a mapping: address, mode, offset, device, inode, path
            counted = str(mapped_files_under) not in rest
        elif counted and name in ("Private_Clean:", "Private_Dirty:"):
            total_kb += int(rest.split()[0])
    return total_kb * 1024


def _cpu_ticks() -> tuple[int, int]:
    """Return busy and total ticks of all CPUs. Interrupts do not count as busy, because they belong to no process."""
    values = [int(value) for value in (_PROC / "stat").read_text().split("\n", 1)[0].split()[1:9]]
    user, nice, system, _, _, _, _, steal = values
    return user + nice + system + steal, sum(values)


def _own_ticks() -> int:
    """Return the ticks of this process and its living descendants, with those of the ended children that they have
    waited for.
    """
    children: dict[int, list[int]] = {}
    ticks: dict[int, int] = {}
    for entry in _PROC.iterdir():
        if not entry.name.isdigit():
            continue
        try:
            fields = (entry / "stat").read_text().rsplit(")", 1)[1].split()
        except OSError:  # the process ended between the listing and the read
            continue
        children.setdefault(int(fields[1]), []).append(int(entry.name))
        ticks[int(entry.name)] = sum(int(value) for value in fields[11:15])
    total, pending = 0, [os.getpid()]
    while pending:
        pid = pending.pop()
        total += ticks.get(pid, 0)
        pending += children.get(pid, [])
    return total
