"""Frames as bytes: Arrow IPC streams, as rows travel between workers and as state is kept."""

from __future__ import annotations

import io

import polars as pl


def pack_frame(frame: pl.DataFrame) -> bytes:
    """A frame as an Arrow IPC stream."""
    buffer = io.BytesIO()
    frame.write_ipc_stream(buffer, compat_level=pl.CompatLevel.oldest())
    return buffer.getvalue()


def unpack_frame(payload: bytes) -> pl.DataFrame:
    """The frame of an Arrow IPC stream."""
    return pl.read_ipc_stream(io.BytesIO(payload))
