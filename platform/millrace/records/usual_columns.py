"""Quick check of small columnar batches of opaque topics.

Decoding with Arrow takes most of the time in which a batch of a few records is checked. So the metadata are compared
with those of a message that this process has written (``usual_message``), and the numbers are checked here.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from millrace.records.columnar import ColumnFlags
from millrace.records.header import NO_TIMESTAMP, BatchHeader, ReadableBuffer
from millrace.records.statistics import STATISTICS_ROWS_MIN
from millrace.records.usual_message import Place, read_usual_message

_ROWS_MAX: Final = STATISTICS_ROWS_MIN - 1
"""With more rows, a batch has statistics, and Arrow checks the offsets faster."""
_OFFSET_BYTES: Final = 4


def usual_column_times(buffer: ReadableBuffer, position: int, header: BatchHeader) -> tuple[int, int] | None:
    """Check a columnar batch as ``validate_batch`` does, for a fraction of its cost, if it is like most small batches.

    Return the smallest and the largest timestamp of a valid batch of an opaque topic. It has no nulls, no headers and
    one timestamp. For any other batch return None, because ``validate_batch`` decides. The caller has verified the
    checksum.
    """
    if header.count > _ROWS_MAX or not NO_TIMESTAMP <= header.base_timestamp == header.max_timestamp:
        return None
    message = read_usual_message(buffer, position, header)
    if message is None or message.has_statistics or message.flags & ColumnFlags.TIMESTAMPS:
        return None
    is_valid = all(_is_valid(column, message.body, header.count) for column in message.columns)
    return (header.max_timestamp, header.max_timestamp) if is_valid else None


def _is_valid(column: Sequence[Place], body: memoryview, rows: int) -> bool:
    """Return whether the offsets of a column of bytes ascend within its bytes."""
    _, (start, size_bytes), values = column
    offsets_bytes = _OFFSET_BYTES * (rows + 1)
    if size_bytes < offsets_bytes:
        return False
    offsets = body[start : start + offsets_bytes].cast("i").tolist()
    return not offsets[0] and offsets == sorted(offsets) and offsets[-1] <= values.size_bytes
