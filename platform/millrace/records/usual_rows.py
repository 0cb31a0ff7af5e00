"""Quick check of batches of rows, by a compiled loop.

The loop takes some 20 ns a record, a fifteenth of the complete check (``validate_batch``). It only recognises batches
like most. The complete check decides about all others, and about all batches until the loop is loaded. A thread loads
it when the first batch of rows comes (``loops``).
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Final, TypeAlias

import numpy as np

from millrace.records.compression import DECOMPRESSED_BYTES_MAX
from millrace.records.header import HEADER_BYTES, NO_TIMESTAMP, BatchHeader, ReadableBuffer, TimestampType
from millrace.records.rows import body_of
from millrace.records.varint_arrays import Bytes

_logger = logging.getLogger(__name__)

_Walk: TypeAlias = Callable[[Bytes, int, bool], tuple[bool, int, int]]

_loading: Final = threading.Lock()
_loaded: Final[list[_Walk]] = []
_cannot_load: Final = threading.Event()


def load_check() -> None:
    """Load the compiled loop, and wait for it."""
    with _loading:
        if not _loaded:
            from millrace.records.loops import walk_rows

            _loaded.append(walk_rows)


def _begin_to_load() -> None:
    if not _loading.locked() and not _cannot_load.is_set():
        threading.Thread(target=_load_or_report, name="millrace-load-loops").start()


def _load_or_report() -> None:
    """Load the loop. If that fails, say so once, because the complete check serves as well."""
    try:
        load_check()
    except Exception:
        _cannot_load.set()
        _logger.exception(
            "numba cannot be loaded: rows are checked slowly until it is repaired and the broker restarts"
        )


def usual_times(
    buffer: ReadableBuffer,
    position: int,
    header: BatchHeader,
    *,
    max_bytes: int = DECOMPRESSED_BYTES_MAX,
    need_keys: bool = False,
) -> tuple[int, int] | None:
    """Check a batch of rows as ``validate_batch`` does, for a fraction of its cost, if it is like most batches.

    Return the smallest and the largest timestamp of a valid batch whose records are numbered from 0, and whose header
    has the largest timestamp. For any other batch return None, because ``validate_batch`` decides. The result is also
    None for a body of more than ``max_bytes``, and until the compiled loop is loaded. With ``need_keys`` each record
    must have a key.

    Raises ``UnsupportedCompressionError``.
    """
    is_rows = not header.is_columnar and header.timestamp_type is TimestampType.CREATE_TIME
    if not is_rows or not 0 < header.count <= header.last_offset_delta + 1:
        return None
    if not _loaded:
        _begin_to_load()
        return None
    if header.compression:
        body, damage = body_of(buffer, position, header, max_bytes)
        if damage is not None:
            return None
        data = np.frombuffer(body, np.uint8)
    elif header.size_bytes - HEADER_BYTES <= max_bytes:
        view = memoryview(buffer).toreadonly()
        data = np.frombuffer(view[position + HEADER_BYTES : position + header.size_bytes], np.uint8)
    else:
        return None
    is_usual, smallest, largest = _loaded[0](data, header.count, need_keys)
    if not is_usual:
        return None
    smallest, largest = header.base_timestamp + smallest, header.base_timestamp + largest
    return (smallest, largest) if smallest >= NO_TIMESTAMP and largest == header.max_timestamp else None
