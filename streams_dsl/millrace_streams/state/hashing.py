"""Permanent hash of keys, which places their rows.

It depends only on the value, on all machines and in all versions.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import polars as pl
import pyarrow as pa

from millrace.clients.producing.partitioner import murmur2_array
from millrace.schemas import encode_keys, is_keyable
from millrace_streams.frames.evaluation import arrow_type, to_arrow


def hashable(keys: pa.Table) -> pa.Table:
    """Return columns of key types of topics; other types are replaced by values that are equal for equal cells."""
    columns = []
    for column in keys.columns:
        if pa.types.is_floating(column.type):
            # Minus zero equals zero, but its bits differ.
            numbers = column.to_numpy().astype(np.float64) + 0.0
            column = pa.chunked_array([pa.array(numbers.view(np.int64), mask=np.asarray(column.is_null()))])
        elif not is_keyable(column.type):
            column = pa.chunked_array([pa.array([None if cell is None else repr(cell) for cell in column.to_pylist()])])
        columns.append(column)
    return pa.table(columns, names=keys.column_names)


def hashes_of(keys: pl.DataFrame) -> npt.NDArray[np.uint32]:
    """Return a hash of each row of a frame of keys.

    Keys of one bucket have murmur2 hashes with equal low bits, because those select the bucket. Here the high bits
    count as well.
    """
    schema = pa.schema([pa.field(name, arrow_type(data_type)) for name, data_type in keys.schema.items()])
    table = hashable(to_arrow(keys, schema))
    hashes = murmur2_array(encode_keys(table, table.column_names)).view(np.uint32) * np.uint32(0x9E3779B1)
    return hashes ^ (hashes >> np.uint32(16))
