"""Compacted partitions, batches with keys, and a cleaner that tests call."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any
from uuid import UUID

import numpy as np
import pyarrow as pa
import pytest

from millrace.config.topic import TopicConfig
from millrace.errors import UnknownSchemaError
from millrace.records import (
    Compression,
    Record,
    build_columnar_batch,
    build_rows_batch,
    decode_range,
)
from millrace.records.arrays import binary_array
from millrace.schemas import encode_keys
from millrace_broker.log import Files, OsFiles, PartitionLog
from millrace_broker.log.cleaning.batches import TopicKeys
from millrace_broker.log.cleaning.cleaner import Cleaner, CleanerLimits
from millrace_broker.log.cleaning.cleaner_manager import cleanable_range
from millrace_broker.log.cleaning.partition_view import PartitionView
from millrace_broker.log.cleaning.statistics import CleaningStatistics
from millrace_broker.runtime.clock import SystemClock

Pair = tuple[bytes | None, bytes | None]
NOW_MS = 1_700_000_000_000


def no_schema(schema_id: int) -> pa.Schema:
    raise UnknownSchemaError(f"schema {schema_id}")


OPAQUE_KEYS = TopicKeys(schema_of=no_schema, key_columns=(), encode=encode_keys)


def columnar(pairs: Sequence[Pair], **arguments: Any) -> bytes:
    """Build an opaque columnar batch with ascending timestamps."""
    columns = pa.RecordBatch.from_arrays(
        [binary_array([key for key, _ in pairs]), binary_array([value for _, value in pairs])], names=["key", "value"]
    )
    times = pa.array(np.arange(NOW_MS, NOW_MS + len(pairs)))
    return build_columnar_batch(columns, **({"timestamps_ms": times} | arguments))


def rows(pairs: Sequence[Pair], **arguments: Any) -> bytes:
    """Build a batch of rows with ascending timestamps."""
    records = [Record(key=key, value=value, timestamp_ms=NOW_MS + n) for n, (key, value) in enumerate(pairs)]
    return build_rows_batch(records, **arguments)


BUILDERS: dict[str, Callable[..., bytes]] = {
    "columnar": columnar,
    "columnar-zstd": lambda pairs, **arguments: columnar(pairs, compression=Compression.ZSTD, **arguments),
    "columnar-one-time": lambda pairs, **arguments: columnar(pairs, timestamps_ms=NOW_MS, **arguments),
    "rows": rows,
    "rows-lz4": lambda pairs, **arguments: rows(pairs, compression=Compression.LZ4, **arguments),
}


def open_partition(directory: Path, files: Files | None = None, **arguments: Any) -> PartitionLog:
    options = {"cleanup.policy": "compact", "segment.bytes": 2000, "index.interval.bytes": 300} | arguments.pop(
        "options", {}
    )
    directory.mkdir(exist_ok=True)
    return PartitionLog(
        topic="orders",
        topic_id=UUID(int=1),
        partition=3,
        directory=directory,
        config=TopicConfig.load(options),
        files=files or OsFiles(),
        clock=SystemClock(),
        **arguments,
    )


def clean(
    log: PartitionLog,
    *,
    files: Files | None = None,
    checkpoint: int | None = None,
    now_ms: int = NOW_MS,
    slots: int = 5000,
    chunk_bytes: int = 1000,
    keys: TopicKeys = OPAQUE_KEYS,
    use_io: Callable[[int], object] = lambda size_bytes: None,
) -> CleaningStatistics | None:
    """Clean a log once, as far as possible."""
    files = files or OsFiles()
    view = PartitionView(log, files)
    dirty = cleanable_range(
        view.segments,
        config=log.config,
        checkpoint=checkpoint,
        log_start_offset=log.log_start_offset,
        log_end_offset=log.log_end_offset,
        last_stable_offset=log.last_stable_offset,
        now_ms=now_ms,
    )
    limits = CleanerLimits(map_slots=slots, map_load_factor=0.9, chunk_bytes=chunk_bytes)
    return Cleaner(limits=limits, files=files, use_io=use_io).clean(view, dirty, keys, now_ms)


def contents(log: PartitionLog, start_offset: int | None = None) -> dict[int, Pair]:
    """Return key and value by offset, in the order in which readers get them."""
    found: dict[int, Pair] = {}
    at = log.log_start_offset if start_offset is None else start_offset
    while at < log.log_end_offset:
        data = log.read(at, 4000)
        if not data:
            break
        for batch in decode_range(pa.py_buffer(data), at, log.log_end_offset, no_schema):
            keys, values = (batch.columns.column(name).to_pylist() for name in ("key", "value"))
            found |= dict(zip(batch.offsets().to_pylist(), zip(keys, values, strict=True), strict=True))
            at = batch.header.next_offset
        at = max(at, list(_headers(data))[-1])
    return found


def _headers(data: bytes) -> Iterator[int]:
    from millrace.records import scan_headers

    return (header.next_offset for _, header in scan_headers(data))


def survivors(pairs: Sequence[Pair], bound: int) -> dict[int, Pair]:
    """Return the model's records, before ``bound`` the last one of each key, and from there on all."""
    last = {key: offset for offset, (key, _) in enumerate(pairs[:bound])}
    return {
        offset: (key, value)
        for offset, (key, value) in enumerate(pairs)
        if offset >= bound or (key is not None and last[key] == offset)
    }


@pytest.fixture(params=sorted(BUILDERS))
def build(request: pytest.FixtureRequest) -> Callable[..., bytes]:
    """Return a function that builds batches, each kind of body in turn."""
    return BUILDERS[request.param]
