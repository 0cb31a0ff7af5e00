"""``maxBytesPerSecond``: how fast the tasks of a query read, so that a backfill leaves the rest of the machine alone.

Tasks that read segment files have nobody between them and the disk who could slow them down, so they do it themselves:
all tasks of one batch on one machine share a file that holds the time up to which their rate is used up. Who has read
adds the time that its bytes are worth, and waits until then. The limit is therefore kept exactly by each machine, and
by a query on one machine; executors on several machines have it each. Nobody waits for a task that died.

A batch is handed on in pieces of a few milliseconds' bytes: what a whole one of some megabytes costs the JVM at once is
felt by everybody on the machine, however long the pause after it is.

Invariant: what the file says only grows, and never lies further ahead than the bytes that were read are worth.
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
_STALE_S: Final = 86_400
_PIECE_S: Final = 0.005
_PIECE_BYTES_MIN: Final = 65_536


@dataclass(frozen=True, slots=True)
class Pace:
    """The rate that the tasks of one plan share; ``token`` is the plan's own."""

    token: uuid.UUID
    bytes_per_second: int


def used_up_to(until_s: float, now_s: float, size_bytes: float, bytes_per_second: int) -> float:
    """Until when the rate is used up, after ``size_bytes`` more were read; time that nobody used is not saved up."""
    return max(until_s, now_s) + size_bytes / bytes_per_second


class SharedPace:
    """The pace of this machine's tasks; ``folder`` is where they meet."""

    def __init__(self, pace: Pace, folder: Path, clock: Callable[[], float] = time.monotonic) -> None:
        self._rate = pace.bytes_per_second
        self._clock = clock
        folder.mkdir(mode=0o700, exist_ok=True)
        _forget_old(folder)
        self._file = os.open(folder / pace.token.hex, os.O_RDWR | os.O_CREAT, 0o600)

    def spend(self, size_bytes: float) -> float:
        """Note that so much was read; returns for how many seconds to wait."""
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
        """Leave. The file stays for the others, and is removed by whoever comes a day later."""
        os.close(self._file)


def paced(batches: Iterator[pa.RecordBatch], counters: ReadCounters, pace: Pace) -> Iterator[pa.RecordBatch]:
    """The same rows, no faster than the pace; ``counters`` say how many bytes of the log they took."""
    shared = SharedPace(pace, Path(tempfile.gettempdir()) / f"millrace-pace-{os.getuid()}")
    piece_bytes = pace.bytes_per_second * _PIECE_S
    spent = owed = 0
    try:
        for batch in batches:
            owed += counters.decoded_bytes - spent
            spent = counters.decoded_bytes
            # A call for every small batch would cost more than it smoothes.
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
    """A batch cut into at most ``count`` pieces of about as many rows each, in order; at least one."""
    rows = max(1, math.ceil(batch.num_rows / count))
    return [batch.slice(start, rows) for start in range(0, batch.num_rows, rows)] or [batch]


def _forget_old(folder: Path) -> None:
    for path in folder.iterdir():
        # Somebody else may have removed it first.
        with suppress(FileNotFoundError):
            if time.time() - path.stat().st_mtime > _STALE_S:
                path.unlink()
