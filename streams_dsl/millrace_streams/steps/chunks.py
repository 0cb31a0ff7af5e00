"""State as bytes: chunks of Arrow with a version, as they lie in Spark's state store.

A chunk is a 16-byte header and an Arrow IPC stream of rows::

    0  u8   version = 1
    1  u8   kind: 0 base (a compacted part of the state), 1 delta (rows that replace older ones of their keys)
    2  6 bytes reserved, zero
    8  i64  stream time in ms after the chunk was written (big-endian)
    16      Arrow IPC stream

Order matters: of rows with the same key the one in the later chunk is current. A delta is appended as long as the
deltas stay small beside the bases, so that a small batch writes little; then all is compacted into new bases.
"""

from __future__ import annotations

import io
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import polars as pl

from millrace_streams.errors import IncompatibleStateError
from millrace_streams.steps.store import StateDelta, Store, StoreSpec

VERSION: Final = 1
_HEADER: Final = struct.Struct(">BB6xq")
_BASE: Final = 0
_DELTA: Final = 1
_CHUNK_ROWS_MAX: Final = 131_072
DELTA_RATIO_MAX: Final = 0.5
"""Deltas beyond this share of the bases' bytes make a compaction due."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkWrite:
    """How the state store must change: ``chunks`` appended to what is there, or in its place."""

    chunks: tuple[bytes, ...]
    replace: bool


def pack_frame(frame: pl.DataFrame) -> bytes:
    """A frame as an Arrow IPC stream."""
    buffer = io.BytesIO()
    frame.write_ipc_stream(buffer, compat_level=pl.CompatLevel.oldest())
    return buffer.getvalue()


def unpack_frame(payload: bytes) -> pl.DataFrame:
    """The frame of an Arrow IPC stream."""
    return pl.read_ipc_stream(io.BytesIO(payload))


def load_store(spec: StoreSpec, chunks: Sequence[bytes]) -> Store:
    """Rebuild a store from its chunks, in order.

    Raises ``IncompatibleStateError`` when a chunk is of another version, or holds other columns than the topology's.
    """
    store = Store(spec)
    for chunk in chunks:
        version, _, stream_time_ms = _HEADER.unpack_from(chunk)
        if version != VERSION:
            raise IncompatibleStateError(
                f"store {spec.name}: its state has version {version}, this millrace reads version {VERSION}: use the "
                "millrace that wrote it, or begin with a new checkpoint"
            )
        rows = unpack_frame(chunk[_HEADER.size :])
        store.apply(StateDelta(rows=rows, stream_time_ms=stream_time_ms))
    return store


def save_delta(store: Store, chunks: Sequence[bytes], delta: StateDelta) -> ChunkWrite:
    """Say how the chunks of ``store`` must change after ``delta`` was applied to it."""
    packed = _chunk(_DELTA, delta.rows, delta.stream_time_ms)
    base_bytes = sum(len(chunk) for chunk in chunks if chunk[1] == _BASE)
    delta_bytes = sum(len(chunk) for chunk in chunks if chunk[1] == _DELTA) + len(packed)
    if base_bytes and delta_bytes <= base_bytes * DELTA_RATIO_MAX:
        return ChunkWrite(chunks=(packed,), replace=False)
    rows = store.compact()
    parts = list(rows.iter_slices(_CHUNK_ROWS_MAX)) or [rows]
    return ChunkWrite(chunks=tuple(_chunk(_BASE, part, store.stream_time_ms) for part in parts), replace=True)


def _chunk(kind: int, rows: pl.DataFrame, stream_time_ms: int) -> bytes:
    return _HEADER.pack(VERSION, kind, stream_time_ms) + pack_frame(rows)
