"""Quick check of batches of rows, by a compiled loop.

The loop takes some 20 ns a record, a fifteenth of the complete check (``validate_batch``). It only recognises batches
like most. The complete check decides about all others, and about all batches until the loop is loaded. A thread loads
it when the first batch of rows comes (``compiled``).
"""

from __future__ import annotations

import numpy as np

from millrace.records.compiled import begin_to_load_loops, loops_if_loaded
from millrace.records.compression import DECOMPRESSED_BYTES_MAX
from millrace.records.header import HEADER_BYTES, NO_TIMESTAMP, BatchHeader, ReadableBuffer, TimestampType
from millrace.records.rows import body_of


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
    loops = loops_if_loaded()
    if loops is None:
        begin_to_load_loops()
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
    is_usual, smallest, largest = loops.walk_rows(data, header.count, need_keys)
    if not is_usual:
        return None
    smallest, largest = header.base_timestamp + smallest, header.base_timestamp + largest
    return (smallest, largest) if smallest >= NO_TIMESTAMP and largest == header.max_timestamp else None
