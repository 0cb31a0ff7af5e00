"""Recovery of a log that was not closed.

Every byte is checked. No part of it is known to be synced. The peer reads the same files with dd into nothing. Any part
of them may be in the page cache.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from pathlib import Path

from benchmarks import logs
from benchmarks.harness import Benchmark, Context, Durability, Measure, Sample, Side
from benchmarks.suite.log_append import dd
from benchmarks.workspace import BenchmarkError
from millrace_broker.log.checkpoints import RECOVERY_POINTS
from millrace_broker.log.data_directory import CLEAN_SHUTDOWN

_BATCH_BYTES = 2**20
_BYTES_PER_RECORD = 1000
"""So that the default of 10 million records makes 10 GB."""
_FOLDER = "log-recovery"


@contextlib.contextmanager
def _open_ours(context: Context) -> Iterator[Measure]:
    folder = context.workspace.folder(_FOLDER, empty=True)
    size_bytes = logs.fill(folder, context.records * _BYTES_PER_RECORD, _BATCH_BYTES)

    def measure() -> Sample:
        (folder / CLEAN_SHUTDOWN).unlink()
        (folder / RECOVERY_POINTS).unlink()
        started = time.perf_counter()
        with logs.opened(folder) as manager:
            seconds = time.perf_counter() - started
            log = manager.get(logs.TOPIC, 0)
            if log is None or log.size_bytes != size_bytes:
                raise BenchmarkError(f"recovery did not find the log's {size_bytes} bytes")
        return Sample(figure=size_bytes / seconds / 1e9, answer=size_bytes)

    with logs.removed(folder):
        yield measure


@contextlib.contextmanager
def _open_peer(context: Context) -> Iterator[Measure]:
    paths = logs.segment_files(context.workspace.folder(_FOLDER))

    def measure() -> Sample:
        size_bytes = sum(path.stat().st_size for path in paths)
        seconds = sum(dd(path, Path("/dev/null")) for path in paths)
        return Sample(figure=size_bytes / seconds / 1e9, answer=size_bytes)

    yield measure


BENCHMARK = Benchmark(
    name="log_recovery",
    title="Recovery of a log of 1,000 bytes a record that was not closed, from its first byte",
    unit="GB/s",
    limit=1,
    durability=Durability.SYNCED,
    ours=Side(
        what="LogManager.open: checksums, indexes built anew, each segment synced",
        settings="one partition, batches of 1 MiB, segments of 1 GiB; an fsync of each segment",
        open=_open_ours,
    ),
    peer=Side(
        what="dd of=/dev/null bs=1M of each segment", settings="the same files; nothing to fsync", open=_open_peer
    ),
)
