"""Arrow arrays from Python values, built from their buffers.

``pa.array`` and ``pa.scalar`` would do the same, but they check for pandas objects. For that check they import pandas
if it is installed. The import costs half a second and tens of megabytes, and the broker has no other use for pandas.
For bytes the functions of this module are also faster.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from functools import lru_cache
from itertools import accumulate
from typing import Final

import pyarrow as pa

from millrace.records.columnar import HEADERS_TYPE

_SHARED_ROWS_MAX: Final = 1000


def binary_array(values: Sequence[bytes | None]) -> pa.BinaryArray:
    """Build a binary array; raises ``OverflowError`` above 2 GiB in total."""
    return _variable_length(pa.binary(), values)


def int64_array(values: Sequence[int]) -> pa.Int64Array:
    """Build an array of 64-bit integers; raises ``OverflowError`` for larger ones."""
    return pa.Array.from_buffers(pa.int64(), len(values), [None, pa.py_buffer(array("q", values))])


def int32_array(values: Sequence[int]) -> pa.Int32Array:
    """Build an array of 32-bit integers; raises ``OverflowError`` for larger ones."""
    return pa.Array.from_buffers(pa.int32(), len(values), [None, pa.py_buffer(array("i", values))])


def int64_scalar(value: int) -> pa.Int64Scalar:
    """Build a 64-bit integer for Arrow's functions; raises ``OverflowError`` for larger ones."""
    return int64_array((value,))[0]


def repeated_int64(value: int, count: int) -> pa.Int64Array:
    """Build an array of one value ``count`` times."""
    return pa.repeat(int64_scalar(value), count)


def null_binary_array(count: int) -> pa.BinaryArray:
    """Build a binary array that contains only nulls; small arrays are cached."""
    return _null_binary_array(count) if count <= _SHARED_ROWS_MAX else pa.nulls(count, pa.binary())


@lru_cache(maxsize=64)
def _null_binary_array(count: int) -> pa.BinaryArray:
    return pa.nulls(count, pa.binary())


def headers_array(headers: Sequence[Sequence[tuple[str, bytes | None]]]) -> pa.ListArray:
    """Build the header array of a batch from a sequence of (key, value) pairs for each record."""
    entries = [entry for record in headers for entry in record]
    keys = _variable_length(pa.string(), [key.encode() for key, _ in entries])
    values = binary_array([value for _, value in entries])
    struct = pa.StructArray.from_arrays([keys, values], fields=list(HEADERS_TYPE.value_type))
    offsets = array("i", accumulate(map(len, headers), initial=0))
    return pa.Array.from_buffers(HEADERS_TYPE, len(headers), [None, pa.py_buffer(offsets)], children=[struct])


def without_columns(row_count: int) -> pa.RecordBatch:
    """Return a record batch with rows but without columns."""
    return pa.RecordBatch.from_arrays([pa.nulls(row_count)], names=[""]).select([])


def _variable_length(type_: pa.DataType, values: Sequence[bytes | None]) -> pa.Array:
    null_count = values.count(None)
    validity = _bitmap(values) if null_count else None
    present = [value or b"" for value in values]
    offsets = array("i", accumulate(map(len, present), initial=0))
    buffers = [validity, pa.py_buffer(offsets), pa.py_buffer(b"".join(present))]
    return pa.Array.from_buffers(type_, len(values), buffers, null_count)


def _bitmap(values: Sequence[bytes | None]) -> pa.Buffer:
    """Return the validity bitmap: one bit for each value, set if the value is not null, lowest bit first."""
    bits = "".join("0" if value is None else "1" for value in reversed(values))
    return pa.py_buffer(int(bits, 2).to_bytes((len(values) + 7) // 8, "little"))
