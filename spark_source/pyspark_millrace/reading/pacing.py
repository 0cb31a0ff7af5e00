"""``maxBytesPerSecond``: a rate limit for the tasks of a query.

It lets a backfill leave capacity to other programs on the machine. Tasks that read segment files do not pass through a
broker that could throttle them, so they throttle themselves. All tasks of one plan on one machine share a file. The
file holds the time until which their rate is used up. A task that read bytes adds the time that they are worth, and
waits until then. So each machine keeps the limit exactly. Executors on several machines each have the full limit. A
task that died blocks no other task.

A batch is passed on in pieces of a few milliseconds each. A whole batch of some megabytes would burst through the JVM
at once and disturb other programs, however long the pause after it.

Invariant: the time in the file only grows, and is never further ahead than the bytes that were read are worth.
"""

from __future__ import annotations

import fcntl
import math
import os
import struct
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import pyarrow as pa

    from pyspark_millrace.reading.reports import ReadCounters

_TIME: Final = struct.Struct("=d")
_STALE_S: Final = 600
_PIECE_S: Final = 0.005
_PIECE_BYTES_MIN: Final = 65_536


@dataclass(frozen=True, slots=True)
class Pace:
    """Rate that the tasks of one plan share; ``token`` identifies the plan."""

    token: uuid.UUID
    bytes_per_second: int


def used_up_to(until_s: float, now_s: float, size_bytes: float, bytes_per_second: int) -> float:
    """Return the time until which the rate is used up after ``size_bytes`` more. Unused time is not saved up."""
    return max(until_s, now_s) + size_bytes / bytes_per_second


class SharedPace:
    """Rate limit for the tasks of one plan on this machine.

    ``folder`` holds the file that the tasks share.
    """

    def __init__(self, pace: Pace, folder: Path, clock: Callable[[], float] = time.monotonic) -> None:
        self._rate = pace.bytes_per_second
        self._clock = clock
        folder.mkdir(mode=0o700, exist_ok=True)
        path = folder / pace.token.hex
        try:
            self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
        except FileExistsError:
            self._file = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        else:
            _forget_old(folder)  # once in a micro-batch, as each has a file of its own

    def spend(self, size_bytes: float) -> float:
        """Record a read of ``size_bytes``; returns the seconds to wait."""
        fcntl.flock(self._file, fcntl.LOCK_EX)
        try:
            stored = os.pread(self._file, _TIME.size, 0)
            until = _TIME.unpack(stored)[0] if len(stored) == _TIME.size else 0.0
            now = self._clock()
            until = used_up_to(until, now, size_bytes, self._rate)
            os.pwrite(self._file, _TIME.pack(until), 0)
        finally:
            fcntl.flock(self._file, fcntl.LOCK_UN)
        return until - now

    def close(self) -> None:
        """Close the file. It stays for other tasks, and the first task of a later plan removes it."""
        os.close(self._file)


def paced(batches: Iterator[pa.RecordBatch], counters: ReadCounters, pace: Pace) -> Iterator[pa.RecordBatch]:
    """Yield the same rows at the given rate; ``counters`` has the bytes of the log behind them."""
    shared = SharedPace(pace, Path(tempfile.gettempdir()) / f"millrace-pace-{os.getuid()}")
    piece_bytes = pace.bytes_per_second * _PIECE_S
    spent = owed = 0
    try:
        for batch in batches:
            owed += counters.decoded_bytes - spent
            spent = counters.decoded_bytes
            # Small batches are collected: one call each would cost more than it gains.
            if owed < piece_bytes:
                yield batch
                continue
            pieces = pieces_of(batch, math.ceil(owed / max(piece_bytes, _PIECE_BYTES_MIN)))
            for piece in pieces:
                time.sleep(max(0.0, shared.spend(owed / len(pieces))))
                yield piece
            owed = 0
        shared.spend(counters.decoded_bytes - spent + owed)
    finally:
        shared.close()


def pieces_of(batch: pa.RecordBatch, count: int) -> list[pa.RecordBatch]:
    """Cut a batch into at most ``count`` pieces of about equal rows, in order; returns at least one."""
    rows = max(1, math.ceil(batch.num_rows / count))
    return [batch.slice(start, rows) for start in range(0, batch.num_rows, rows)] or [batch]


def _forget_old(folder: Path) -> None:
    for path in folder.iterdir():
        # Another task may have removed the file first.
        with suppress(FileNotFoundError):
            if time.time() - path.stat().st_mtime > _STALE_S:
                path.unlink()
