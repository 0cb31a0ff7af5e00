"""Results as records of topics of bytes: keys and values as their serdes write them.

The key of a window is the key's bytes and the window's bounds, as Kafka Streams' ``TimeWindowedSerializer`` and
``SessionWindowedSerializer`` write it: the start in ms (8 bytes), of a session the end and then the start.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final

import polars as pl
import pyarrow as pa

from millrace_streams.compiler.produced import produced_of
from millrace_streams.errors import UserFunctionError
from millrace_streams.graph import Produced, RepartitionNode, TopicSinkNode
from millrace_streams.layout import Layout
from millrace_streams.serdes import RowSerde, Serde, serde_of_field
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


@dataclass(frozen=True, slots=True)
class OpaqueRows:
    """Turns packed results into key, value and time of records of bytes; a callable for ``mapInArrow``.

    ``produced`` has the serdes of both, unless the records have no key.
    """

    layout: Layout
    produced: Produced
    node: str

    @classmethod
    def of(cls, node: TopicSinkNode | RepartitionNode, layout: Layout) -> OpaqueRows:
        """Those of a node that writes a topic of bytes. Raises ``TopologyError`` for what that cannot hold."""
        return cls(layout, produced_of(layout, node.produced, node.name, node.topic), node.name)

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Serialize a Spark task's results."""
        for batch in batches:
            for payload in batch.column("payload"):
                table = self.records(Batch.of_frame(self.layout, unpack_frame(payload.as_py())))
                yield from table.to_batches(max_chunksize=_BATCH_ROWS)

    def records(self, batch: Batch) -> pa.Table:
        """The records of a batch. Raises ``UserFunctionError`` for one that a serde cannot write."""
        times = batch.frame[TIMESTAMP] * 1000
        columns = [
            self._keys(batch),
            self._values(batch),
            pa.array(times.to_list(), pa.int64()).cast(OPAQUE_ROWS.field("timestamp").type),
        ]
        return pa.Table.from_arrays(columns, schema=OPAQUE_ROWS)

    def _keys(self, batch: Batch) -> pa.Array:
        serde, layout = self.produced.key, self.layout
        if serde is None:
            return pa.nulls(batch.height, pa.binary())
        if isinstance(serde, RowSerde):
            plain = self._rows("key", serde, batch, [key is not None for key in batch.keys])
        else:
            bare = (lambda: [key.key for key in batch.keys]) if layout.windowed else (lambda: batch.keys)
            plain = self._cells("key", serde, batch.frame, layout.key[0], bare)
        if not layout.windowed:
            return plain
        bounds = map(self._bounds, batch.keys)
        return pa.array([data + more for data, more in zip(plain.to_pylist(), bounds, strict=True)], pa.binary())

    def _values(self, batch: Batch) -> pa.Array:
        serde = self.produced.value
        if isinstance(serde, RowSerde):
            return self._rows("value", serde, batch, batch.present)
        assert serde is not None
        assert self.layout.value is not None
        return self._cells("value", serde, batch.frame, self.layout.value, lambda: batch.values)

    def _cells(
        self, what: str, serde: Serde, frame: pl.DataFrame, name: str, cells: Callable[[], list[Any]]
    ) -> pa.Array:
        """A column as bytes; ``cells`` gives what its serde takes."""
        column = self.layout.schema.field(name)
        if column.type in (pa.string(), pa.binary()) and serde.name == serde_of_field(column).name:
            # Texts, JSON among them, are in columns what they are in bytes.
            return frame[name].cast(pl.Binary).to_arrow(compat_level=pl.CompatLevel.oldest()).cast(pa.binary())
        return self._written(what, serde, cells())

    def _rows(self, what: str, serde: RowSerde, batch: Batch, present: list[bool]) -> pa.Array:
        """Rows of the serde's columns as payloads; null where there is none."""
        rows = batch.frame.select(serde.schema.names).to_dicts()
        return self._written(what, serde, (row if there else None for row, there in zip(rows, present, strict=True)))

    def _written(self, what: str, serde: Any, values: Iterable[Any]) -> pa.Array:
        value: Any = None
        try:
            return pa.array(
                [None if (value := each) is None else serde.serialize(each) for each in values], pa.binary()
            )
        except Exception as error:
            raise UserFunctionError(
                f"{self.node}: the {what} {value!r} cannot be written as {serde}: {error}", node=self.node
            ) from error

    def _bounds(self, windowed: Windowed) -> bytes:
        if self.layout.sessions:
            return _END_AND_START.pack(windowed.end, windowed.start)
        return _START.pack(windowed.start)
