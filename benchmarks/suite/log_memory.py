"""Private memory of a process with a growing log.

The process holds the log open, appends to it and reads all of it. A log of thirty times the length must not need more
memory. Our figure is the memory at the full size, and the peer's that of the same process at a thirtieth of it. The
figures in between are printed.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from benchmarks import logs, machine
from benchmarks.harness import Benchmark, Context, Durability, Measure, Sample, Side
from benchmarks.worker import Run, worker
from benchmarks.workspace import BenchmarkError

_BATCH_BYTES = 2**20
_READ_BYTES = 2**20
_BYTES_PER_RECORD = 100
_PARTS = (1, 10, 30)
"""Sizes of the log, in units of 100 bytes a record. The default of 10 million records makes 1, 10 and 30 GB."""
_FOLDER = "log-memory"


@contextlib.contextmanager
def serve(*, folder: str, unit_bytes: int) -> Iterator[Run]:
    """Run the worker, whose log grows to each size and is read completely there.

    It returns the memory at each size in MB.
    """
    import os
    from pathlib import Path

    def run() -> dict[str, Any]:
        figures = {}
        with logs.opened(Path(folder)) as manager:
            log = logs.create(manager)
            for part in _PARTS:
                logs.append(log, part * unit_bytes - log.size_bytes, _BATCH_BYTES)
                log.tick(producer_expiration_ms=86_400_000)
                offset = 0
                while offset < log.log_end_offset:
                    offset = _end_of(log.read(offset, _READ_BYTES))
                figures[str(part)] = machine.private_bytes(os.getpid(), Path(folder)) / 1e6
        return figures

    yield run


def _end_of(records: bytes) -> int:
    from millrace.records import scan_headers

    *_, (_, last) = scan_headers(records)
    return last.next_offset


class _Figures:
    """The latest run's figures, shared by both sides.

    The second side only reads the figures of the first one.
    """

    latest: dict[str, float]


@contextlib.contextmanager
def _open_ours(context: Context) -> Iterator[Measure]:
    unit_bytes = context.records * _BYTES_PER_RECORD

    def measure() -> Sample:
        arguments = {"folder": str(context.workspace.folder(_FOLDER, empty=True)), "unit_bytes": unit_bytes}
        with worker(context.workspace, _FOLDER, f"{__name__}:serve", arguments) as run:
            _Figures.latest = run()
        context.workspace.folder(_FOLDER, empty=True)
        for part, figure in _Figures.latest.items():
            print(f"    {int(part) * unit_bytes / 1e9:g} GB: {figure:.1f} MB", flush=True)
        return Sample(figure=_Figures.latest[str(_PARTS[-1])])

    yield measure


@contextlib.contextmanager
def _open_peer(context: Context) -> Iterator[Measure]:
    def measure() -> Sample:
        if not hasattr(_Figures, "latest"):
            raise BenchmarkError("log_memory compares a run with its own beginning: measure both sides")
        return Sample(figure=_Figures.latest[str(_PARTS[0])])

    yield measure


BENCHMARK = Benchmark(
    name="log_memory",
    title="Private memory of a process with a log of 3,000 bytes a record (30 GB), beside a thirtieth of it",
    unit="MB",
    higher_is_better=False,
    target_ratio=0.9,
    durability=Durability.NOT_SYNCED,
    ours=Side(
        what="one log, grown to 30 units of 100 bytes a record and read whole",
        settings="batches of 1 MiB, segments of 1 GiB, reads of 1 MiB; no fsync before an append returns",
        open=_open_ours,
    ),
    peer=Side(what="the same process when the log had one unit", settings="the same, no fsync", open=_open_peer),
)
