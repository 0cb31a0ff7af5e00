"""Logs without a broker, for rows about the storage engine.

A log is one partition with batches of one size.
"""

from __future__ import annotations

import contextlib
import itertools
import shutil
import uuid
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from benchmarks.workspace import BenchmarkError
from millrace.config.topic import TopicConfig
from millrace.records import build_columnar_batch
from millrace_broker.log import LogManager, PartitionLog

TOPIC = "log"
BROKER: dict[str, Any] = {"broker_id": 0, "cluster_id": "benchmark"}
_VALUE_BYTES = 100
_FRAME_BYTES = 512  # of a batch besides its values and their offsets
NOW_MS = 1_700_000_000_000


@cache
def batch(size_bytes: int) -> bytes:
    """Build a columnar batch of about this size, of arbitrary 100-byte values."""
    count = max((size_bytes - _FRAME_BYTES) // (_VALUE_BYTES + 4), 1)
    values = np.random.default_rng(7).bytes(count * _VALUE_BYTES)
    array = pa.array([values[at : at + _VALUE_BYTES] for at in range(0, len(values), _VALUE_BYTES)], pa.binary())
    return bytes(build_columnar_batch(pa.record_batch({"value": array}), timestamps_ms=NOW_MS))


@contextlib.contextmanager
def opened(folder: Path, **options: object) -> Iterator[LogManager]:
    """Open the logs in a folder with these defaults of topics, and close them cleanly at the end."""
    defaults = TopicConfig.load({name.replace("_", "."): value for name, value in options.items()})
    manager = LogManager.open([folder], defaults=defaults, **BROKER)
    try:
        yield manager
    finally:
        manager.close()


@contextlib.contextmanager
def removed(folder: Path) -> Iterator[None]:
    """Remove a folder at the end."""
    try:
        yield
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def segment_files(folder: Path) -> list[Path]:
    """Return the segments of a log that our side of a benchmark, which is opened first, has filled."""
    paths = sorted(folder.rglob("*.log"))
    if not paths:
        raise BenchmarkError(f"{folder} holds no log: measure both sides, ours makes it")
    return paths


def create(manager: LogManager) -> PartitionLog:
    """Create a new partition."""
    return manager.create_log(TOPIC, uuid.uuid4(), 0)


def append(log: PartitionLog, size_bytes: int, batch_bytes: int) -> int:
    """Append batches until there are so many more bytes. Return the number of appended bytes."""
    one = batch(batch_bytes)
    count = -(-size_bytes // len(one))
    for _ in itertools.repeat(None, count):
        log.append(one)
    return count * len(one)


def fill(folder: Path, size_bytes: int, batch_bytes: int, **options: object) -> int:
    """Create a clean log of so many bytes in a folder. Return its number of bytes."""
    with opened(folder, **options) as manager:
        return append(create(manager), size_bytes, batch_bytes)
