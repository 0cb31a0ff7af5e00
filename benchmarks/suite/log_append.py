"""Appends of 1 MiB batches to one partition, beside dd.

dd writes as many bytes to the same file system. Both sync their writes at the end, and that time counts. Our side runs
in this process. It also checks each batch (header, checksum), assigns offsets and writes index entries. dd writes
zeros.
"""

from __future__ import annotations

import contextlib
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

from benchmarks import logs
from benchmarks.harness import Benchmark, Context, Durability, Measure, Sample, Side
from benchmarks.workspace import BenchmarkError

BATCH_BYTES = 2**20
_BYTES_PER_RECORD = 400
"""So that the default of 10 million records makes 4 GB."""


def size_bytes(context: Context) -> int:
    """Return the bytes of a run."""
    return context.records * _BYTES_PER_RECORD


@contextlib.contextmanager
def open_ours(context: Context, *, syncs_at_end: bool, **options: object) -> Iterator[Measure]:
    """Measure ``PartitionLog.append`` into a new log each time."""
    logs.batch(BATCH_BYTES)

    def measure() -> Sample:
        folder = context.workspace.folder("log-append", empty=True)
        with logs.opened(folder, **options) as manager:
            log = logs.create(manager)
            started = time.perf_counter()
            appended = logs.append(log, size_bytes(context), BATCH_BYTES)
            if syncs_at_end:
                log.flush()
            seconds = time.perf_counter() - started
        context.workspace.folder("log-append", empty=True)
        return Sample(figure=appended / seconds / 1e6)

    yield measure


@contextlib.contextmanager
def open_peer(context: Context, *flags: str) -> Iterator[Measure]:
    """Measure dd with a block size of 1 MiB."""

    def measure() -> Sample:
        file = context.workspace.folder("log-append", empty=True) / "dd"
        blocks = -(-size_bytes(context) // BATCH_BYTES)
        seconds = dd(Path("/dev/zero"), file, f"count={blocks}", *flags)
        written = file.stat().st_size
        file.unlink()
        return Sample(figure=written / seconds / 1e6)

    yield measure


def dd(source: Path, target: Path, *operands: str) -> float:
    """Copy with dd in blocks of 1 MiB, and return the seconds."""
    started = time.perf_counter()
    done = subprocess.run(
        ["dd", f"if={source}", f"of={target}", f"bs={BATCH_BYTES}", *operands],
        capture_output=True,
        text=True,
        check=False,
    )
    seconds = time.perf_counter() - started
    if done.returncode:
        raise BenchmarkError(f"dd failed:\n{done.stderr}")
    return seconds


BENCHMARK = Benchmark(
    name="log_append",
    title="Append of 1 MiB batches to a log, in MB/s",
    unit="MB/s",
    target_ratio=0.7,
    durability=Durability.SYNCED_AT_END,
    ours=Side(
        what="PartitionLog.append, one thread, then PartitionLog.flush",
        settings="segments of 1 GiB; one fsync of each at the end",
        open=lambda context: open_ours(context, syncs_at_end=True),
    ),
    peer=Side(
        what="dd if=/dev/zero bs=1M conv=fdatasync",
        settings="to the same file system; one fsync at the end",
        open=lambda context: open_peer(context, "conv=fdatasync"),
    ),
)
