"""Results as records of topics of bytes, written by serdes.

They are written where the task runs, so a record that cannot be written fails like any other.

A windowed key is the key's bytes and the window's bounds, as in Kafka Streams' ``TimeWindowedSerializer`` and
``SessionWindowedSerializer``. The bounds are the start in ms (8 bytes), or for a session the end and then the start.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import polars as pl
import pyarrow as pa

from millrace_streams.compiler.produced import produced_of
from millrace_streams.graph import Produced, RepartitionNode, TopicSinkNode
from millrace_streams.layout import KEY, OPAQUE_SHAPE, VALUE, Layout
from millrace_streams.serdes import RowSerde, Serde, serde_of_field
from millrace_streams.steps.batch import TIMESTAMP, TOPIC, Batch
from millrace_streams.steps.flow import Flow, Origin
from millrace_streams.windows import Windowed

_START: Final = struct.Struct(">q")
_END_AND_START: Final = struct.Struct(">qq")
WRITTEN: Final = Layout(schema=OPAQUE_SHAPE.schema, key=OPAQUE_SHAPE.key_columns, bucket_columns=None, value=VALUE)
"""Layout of rows for a topic of bytes."""


@dataclass(frozen=True, slots=True)
class OpaqueRows:
    """Conversion of a sink's rows to keys and values of bytes.

    ``produced`` has both serdes, except if the records have no key.
    """

    layout: Layout
    produced: Produced
    node: str

    @classmethod
    def of(cls, node: TopicSinkNode | RepartitionNode, layout: Layout) -> OpaqueRows:
        """Return the writer of a node for a topic of bytes. Raises ``TopologyError`` for rows that it cannot hold."""
        return cls(layout, produced_of(layout, node.produced, node.name, node.topic or "a topic"), node.name)

    def written(self, flow: Flow, origin: Callable[[int], Origin]) -> Flow:
        """Convert rows to bytes. Raises ``UserFunctionError`` with the record of a row that a serde cannot write."""
        batch = flow.batch
        try:
            columns = {KEY: self._keys(batch), VALUE: self._values(batch)}
        except _UnwritableError as error:
            raise flow.failure(self.node, str(error), error.row, origin) from error.__cause__
        reserved = [TIMESTAMP, TOPIC] if TOPIC in batch.frame.columns else [TIMESTAMP]
        frame = pl.DataFrame(pa.table(columns)).with_columns(batch.frame[reserved])
        return Flow(Batch.of_frame(WRITTEN, frame), flow.marks)

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
        """Return a column as bytes; ``cells`` returns the input of its serde."""
        column = self.layout.schema.field(name)
        if column.type in (pa.string(), pa.binary()) and serde.name == serde_of_field(column).name:
            # Text columns, including JSON, hold the same bytes.
            return frame[name].cast(pl.Binary).to_arrow(compat_level=pl.CompatLevel.oldest()).cast(pa.binary())
        return self._written(what, serde, cells())

    def _rows(self, what: str, serde: RowSerde, batch: Batch, present: list[bool]) -> pa.Array:
        """Return rows of the serde's columns as payloads; null without a value."""
        rows = batch.frame.select(serde.schema.names).to_dicts()
        return self._written(what, serde, [row if there else None for row, there in zip(rows, present, strict=True)])

    def _written(self, what: str, serde: Any, values: list[Any]) -> pa.Array:
        found: list[bytes | None] = []
        try:
            # The list holds everything written so far, so the failing row is known.
            found.extend(None if value is None else serde.serialize(value) for value in values)
            return pa.array(found, pa.binary())
        except Exception as error:
            row = next((row for row, data in enumerate(found) if not isinstance(data, bytes | None)), len(found))
            text = f"the {what} {values[row]!r} cannot be written as {serde}: {error}"
            raise _UnwritableError(text, row) from error

    def _bounds(self, windowed: Windowed) -> bytes:
        if self.layout.sessions:
            return _END_AND_START.pack(windowed.end, windowed.start)
        return _START.pack(windowed.start)


class _UnwritableError(Exception):
    """A value that no serde can write, with its row."""

    def __init__(self, text: str, row: int) -> None:
        super().__init__(text)
        self.row = row
