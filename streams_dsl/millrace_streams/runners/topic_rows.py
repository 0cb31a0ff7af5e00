"""Results as records of topics: keys and values as their serdes write them.

The key of a window is the key's bytes and the window's bounds, as Kafka Streams' ``TimeWindowedSerializer`` and
``SessionWindowedSerializer`` write it: the start in ms (8 bytes), of a session the end and then the start.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final

import polars as pl
import pyarrow as pa

from millrace_streams.errors import TopologyError
from millrace_streams.layout import Layout
from millrace_streams.serdes import serde_of_field
from millrace_streams.steps.batch import TIMESTAMP, Batch
from millrace_streams.steps.packed_frames import unpack_frame
from millrace_streams.windows import Windowed

_START: Final = struct.Struct(">q")
_END_AND_START: Final = struct.Struct(">qq")
_BATCH_ROWS: Final = 20_000
OPAQUE_ROWS: Final = pa.schema(
    [("key", pa.binary()), ("value", pa.binary()), ("timestamp", pa.timestamp("us", tz="UTC"))]
)
"""What the sink takes for an opaque topic."""


def check_opaque(layout: Layout, node: str, topic: str) -> None:
    """Refuse what a topic of bytes cannot hold. Raises ``TopologyError`` naming the node."""
    if len(layout.key) > 1:
        raise TopologyError(
            f"{node}: {topic} is a topic of bytes, whose key is one value, not {', '.join(layout.key)}: select_key() "
            "one, or give the topic a schema"
        )
    if layout.value is None:
        raise TopologyError(
            f"{node}: {topic} is a topic of bytes, whose value is one value, not the columns "
            f"{', '.join(layout.value_columns)}: map_values(..., value='json'), or give the topic a schema"
        )


@dataclass(frozen=True, slots=True)
class OpaqueRows:
    """Turns packed results into key, value and time of records of bytes; a callable for ``mapInArrow``."""

    layout: Layout

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Serialize a Spark task's results."""
        for batch in batches:
            for payload in batch.column("payload"):
                table = self._records(unpack_frame(payload.as_py()))
                yield from table.to_batches(max_chunksize=_BATCH_ROWS)

    def _records(self, frame: pl.DataFrame) -> pa.Table:
        layout = self.layout
        assert layout.value is not None
        batch = Batch.of_frame(layout, frame)
        columns = [
            self._keys(frame, batch),
            _serialized(layout.schema.field(layout.value), frame, lambda: batch.values),
            pa.array((frame[TIMESTAMP] * 1000).to_list(), pa.int64()).cast(OPAQUE_ROWS.field("timestamp").type),
        ]
        return pa.Table.from_arrays(columns, schema=OPAQUE_ROWS)

    def _keys(self, frame: pl.DataFrame, batch: Batch) -> pa.Array:
        if not self.layout.key:
            return pa.nulls(frame.height, pa.binary())
        column = self.layout.schema.field(self.layout.key[0])
        if not self.layout.windowed:
            return _serialized(column, frame, lambda: batch.keys)
        serialize = serde_of_field(column).serialize
        return pa.array([self._windowed(serialize, key) for key in batch.keys], pa.binary())

    def _windowed(self, serialize: Callable[[Any], bytes], windowed: Windowed) -> bytes:
        if self.layout.sessions:
            return serialize(windowed.key) + _END_AND_START.pack(windowed.end, windowed.start)
        return serialize(windowed.key) + _START.pack(windowed.start)


def _serialized(column: pa.Field, frame: pl.DataFrame, cells: Callable[[], list[Any]]) -> pa.Array:
    """A column as bytes; ``cells`` gives what its serde takes."""
    if column.type in (pa.string(), pa.binary()):
        # Texts, JSON among them, are in columns what they are in bytes.
        return frame[column.name].cast(pl.Binary).to_arrow(compat_level=pl.CompatLevel.oldest()).cast(pa.binary())
    serialize = serde_of_field(column).serialize
    return pa.array([None if cell is None else serialize(cell) for cell in cells()], pa.binary())
