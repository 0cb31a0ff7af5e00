"""Appends of 1 MiB batches to the page cache only, beside dd.

Neither side syncs. There are a quarter of ``log_append``'s bytes. No side waits for the disk, so this row shows the
cost of an append besides the copy into the kernel.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import replace

from benchmarks.harness import Benchmark, Context, Durability, Measure, Side
from benchmarks.suite import log_append


def _a_quarter(context: Context) -> Context:
    """Return a quarter of the bytes, so that their writeback has not begun at the end of the run."""
    return replace(context, records=context.records // 4)


def _open_ours(context: Context) -> AbstractContextManager[Measure]:
    return log_append.open_ours(_a_quarter(context), syncs_at_end=False)


def _open_peer(context: Context) -> AbstractContextManager[Measure]:
    return log_append.open_peer(_a_quarter(context))


BENCHMARK = Benchmark(
    name="log_append_cached",
    title="Append of 1 MiB batches to a log, in the page cache, in MB/s",
    unit="MB/s",
    target_ratio=0.7,
    durability=Durability.NOT_SYNCED,
    ours=Side(what="PartitionLog.append, one thread", settings="no fsync", open=_open_ours),
    peer=Side(what="dd if=/dev/zero bs=1M", settings="to the same file system, no fsync", open=_open_peer),
)
