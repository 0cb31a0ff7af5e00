"""Memory mapping of a run of batches for zero-copy decoding."""

from __future__ import annotations

import mmap
import os
from pathlib import Path

import pyarrow as pa

from millrace.errors import OffsetsLostError, StorageError


def map_extent(path: Path | str, start_position: int, end_position: int) -> pa.Buffer:
    """Map bytes ``start_position`` to ``end_position`` (exclusive) of a segment file, read only.

    The buffer begins exactly at ``start_position``; underneath, the mapping begins at the page before it. The file is
    closed at once. The mapping lives as long as the buffer or anything sliced or decoded from it, so the caller
    closes nothing. On local file systems the bytes stay readable after the broker has deleted the file.

    The mapping never extends beyond the file's current size. Callers request only positions that the broker has
    published. The broker never truncates before those (see ``millrace_broker.log.segment``), so a mapping cannot lose
    pages in use.

    Raises ``OffsetsLostError`` if the file no longer exists, ``StorageError`` if it cannot be read or ends too early.
    """
    if not 0 <= start_position <= end_position:
        raise StorageError(f"{path}: no extent reaches from {start_position} to {end_position}")
    if start_position == end_position:
        return pa.py_buffer(b"")
    try:
        with open(path, "rb", buffering=0) as file:
            size_bytes = os.fstat(file.fileno()).st_size
            if end_position > size_bytes:
                raise StorageError(
                    f"{path} has {size_bytes} bytes, wanted those up to {end_position}: "
                    "ask the broker for the extents again"
                )
            skipped = start_position % mmap.ALLOCATIONGRANULARITY
            length = end_position - start_position
            mapping = mmap.mmap(
                file.fileno(), length + skipped, access=mmap.ACCESS_READ, offset=start_position - skipped
            )
    except FileNotFoundError as error:
        raise OffsetsLostError(
            f"{path} was removed (retention, or the topic was deleted): ask the broker for the extents again"
        ) from error
    except OSError as error:
        raise StorageError(f"cannot map {path}: {error.strerror}") from error
    mapping.madvise(mmap.MADV_SEQUENTIAL)
    return pa.py_buffer(mapping).slice(skipped, length)
