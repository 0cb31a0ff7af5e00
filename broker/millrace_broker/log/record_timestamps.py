"""The timestamps of a batch's records, independent of the topic's schema."""

from __future__ import annotations

import pyarrow as pa

from millrace.records import BatchHeader, decode_batch


def record_times(batch: bytes, header: BatchHeader) -> list[tuple[int, int]]:
    """Read (offset, timestamp in ms) of each record; it needs no schema, because it reads no column of one.

    Raises ``CorruptBatchError``.
    """
    decoded = decode_batch(pa.py_buffer(batch), 0, header, lambda _: pa.schema([]), columns=())
    return list(zip(decoded.offsets().to_pylist(), decoded.timestamps_ms().to_pylist(), strict=True))


def first_at_or_after(
    batch: bytes, header: BatchHeader, timestamp_ms: int, start_offset: int
) -> tuple[int, int] | None:
    """Find the first record from ``start_offset`` on, not before ``timestamp_ms``: (offset, timestamp)."""
    for offset, time_ms in record_times(batch, header):
        if time_ms >= timestamp_ms and offset >= start_offset:
            return offset, time_ms
    return None
