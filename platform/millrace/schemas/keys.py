"""Key bytes of a typed topic's rows.

The partitioner and compaction use them. For one key column the bytes are those of Kafka's serializers, so that rows go
to the same partitions as the same keys in Kafka. Strings are UTF-8. Whole numbers are big-endian two's complement.
Dates are days in 4 bytes. Timestamps and intervals are microseconds in 8 bytes, times are nanoseconds in 8 bytes, and
decimals are unscaled in 16. Booleans are one byte 0 or 1, and binary values are unchanged. For several columns the key
concatenates each value's length (4 bytes, big-endian; -1 for null) and its bytes. A row whose key columns are all null
has no key.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pat

INTEGER_BYTES: Final = {
    pa.int8(): 1, pa.int16(): 2, pa.int32(): 4, pa.int64(): 8, pa.date32(): 4,
    pa.timestamp("us"): 8, pa.timestamp("us", tz="UTC"): 8, pa.duration("us"): 8, pa.time64("ns"): 8,
}  # fmt: skip


def encode_keys(table: pa.Table | pa.RecordBatch, key_columns: Sequence[str]) -> pa.LargeBinaryArray:
    """Return the key of every row as bytes, null without a key; ``table`` has the types of its topic's schema.

    The columns must satisfy ``is_keyable``, as a topic's key columns do.
    """
    parts = [_column_bytes(table.column(name)) for name in key_columns]
    if len(parts) == 1:
        return parts[0]
    framed: list[pa.Array] = []
    any_valid = None
    for part in parts:
        lengths = pc.fill_null(pc.binary_length(part), -1).cast(pa.int32())
        framed += [_big_endian(lengths, 4), pc.fill_null(part, b"")]
        any_valid = part.is_valid() if any_valid is None else pc.or_(any_valid, part.is_valid())
    joined = pc.binary_join_element_wise(*framed, pa.scalar(b"", pa.large_binary()))
    return pc.if_else(any_valid, joined, pa.scalar(None, pa.large_binary()))


def _column_bytes(column: pa.ChunkedArray | pa.Array) -> pa.LargeBinaryArray:
    array = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    if isinstance(array, pa.ChunkedArray):
        array = pa.concat_arrays(array.chunks)
    data_type = array.type
    if pat.is_string(data_type) or pat.is_binary(data_type):
        return array.cast(pa.large_binary())
    if pat.is_boolean(data_type):
        return _big_endian(array.cast(pa.int8()), 1)
    if pat.is_decimal128(data_type):
        raw = np.frombuffer(array.buffers()[1], np.uint8).reshape(-1, 16)[array.offset : array.offset + len(array)]
        return _fixed_width(np.ascontiguousarray(raw[:, ::-1]), 16, array)
    return _big_endian(array, INTEGER_BYTES[data_type])


def _big_endian(array: pa.Array, width_bytes: int) -> pa.LargeBinaryArray:
    values = np.frombuffer(array.buffers()[1], f"<i{width_bytes}")[array.offset : array.offset + len(array)]
    return _fixed_width(values.byteswap(), width_bytes, array)


def _fixed_width(values: npt.NDArray[Any], width_bytes: int, like: pa.Array) -> pa.LargeBinaryArray:
    offsets = np.arange(len(like) + 1, dtype=np.int64) * width_bytes
    validity = None
    if like.null_count:
        validity = pc.and_(like.is_valid(), True).buffers()[1]
    buffers = [validity, pa.py_buffer(offsets), pa.py_buffer(values)]
    return pa.LargeBinaryArray.from_buffers(pa.large_binary(), len(like), buffers)
