"""Appends of 1 MiB batches to one partition.

The peer is dd past the page cache. This is the disk's maximum here. ``log_append`` has dd through the page cache. There
the kernel, and not the disk, slows dd down when there are many dirty pages.
"""

from __future__ import annotations

from benchmarks.harness import Benchmark, Durability, Side
from benchmarks.suite import log_append

BENCHMARK = Benchmark(
    name="log_append_best",
    title="Append of 1 MiB batches to a log, dd with direct writes, in MB/s",
    unit="MB/s",
    target_ratio=0.7,
    durability=Durability.SYNCED_AT_END,
    ours=log_append.BENCHMARK.ours,
    peer=Side(
        what="dd if=/dev/zero bs=1M oflag=direct conv=fsync",
        settings="to the same file system, past the page cache; one fsync at the end",
        open=lambda context: log_append.open_peer(context, "oflag=direct", "conv=fsync"),
    ),
)
