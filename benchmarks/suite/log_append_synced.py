"""Appends of 1 MiB batches with a sync each.

The peer is dd with ``oflag=dsync``.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import replace

from benchmarks.harness import Benchmark, Context, Durability, Measure, Side
from benchmarks.suite import log_append


def _fewer(context: Context) -> Context:
    """Return a fifth of the bytes, because each megabyte waits for the disk."""
    return replace(context, records=context.records // 5)


def _open_ours(context: Context) -> AbstractContextManager[Measure]:
    return log_append.open_ours(_fewer(context), syncs_at_end=False, flush_before_ack=True)


def _open_peer(context: Context) -> AbstractContextManager[Measure]:
    return log_append.open_peer(_fewer(context), "oflag=dsync")


BENCHMARK = Benchmark(
    name="log_append_synced",
    title="Append of 1 MiB batches to a log, each synced before the next, in MB/s",
    unit="MB/s",
    target_ratio=0.7,
    durability=Durability.SYNCED,
    ours=Side(
        what="PartitionLog.append, one thread",
        settings="flush.before.ack=true: an fsync before each append returns",
        open=_open_ours,
    ),
    peer=Side(
        what="dd if=/dev/zero bs=1M oflag=dsync",
        settings="to the same file system: as by an fsync after each block",
        open=_open_peer,
    ),
)
