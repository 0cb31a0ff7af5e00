"""Packed rows, the form of batches within Spark.

One Spark row holds many records. Spark passes rows to stateful Python code one by one, which rules out vectorised
steps. So records of one bucket travel as one row. ``stage`` is the receiving stage, ``bucket`` the bucket, and
``target`` the node of the rows. ``sequence`` is the first record's offset, ``rows`` the number of rows. ``records``
counts the records read for it, and ``dropped`` the dropped ones. ``payload`` is an Arrow IPC stream or, with
``by_reference``, a reference by which the task reads the records.

Rows that leave the topology have ``stage`` -1 and the sink's node as ``target``. A task (or bucket) can yield its
results in several pieces; ``is_first`` is true in the first one. A row without a target carries only ``records`` and
``dropped``. Stages pass on rows of other stages.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final, NamedTuple

import polars as pl
import pyarrow as pa

from millrace_streams.frames.evaluation import to_arrow
from millrace_streams.frames.packed import unpack_frame
from millrace_streams.steps.batch import HEADERS, TIMESTAMP

PACKED_DDL: Final = (
    "stage INT, bucket INT, target STRING, sequence BIGINT, rows BIGINT, records BIGINT, dropped BIGINT, "
    "payload BINARY, by_reference BOOLEAN, is_first BOOLEAN"
)
PACKED: Final = pa.schema(
    [
        ("stage", pa.int32()),
        ("bucket", pa.int32()),
        ("target", pa.string()),
        ("sequence", pa.int64()),
        ("rows", pa.int64()),
        ("records", pa.int64()),
        ("dropped", pa.int64()),
        ("payload", pa.binary()),
        ("by_reference", pa.bool_()),
        ("is_first", pa.bool_()),
    ]
)
OUT: Final = -1
"""The ``stage`` of rows that leave the topology."""

ROWS_PER_PAYLOAD: Final = 262_144
BYTES_PER_PAYLOAD_MAX: Final = 16 * 2**20
_OUTPUT_BATCH_ROWS: Final = 20_000


class Packed(NamedTuple):
    """Spark row with many records of one bucket."""

    stage: int
    bucket: int
    target: str = ""
    sequence: int = 0
    rows: int = 0
    records: int = 0
    dropped: int = 0
    payload: bytes | pl.DataFrame = b""
    by_reference: bool = False
    is_first: bool = True

    @property
    def frame(self) -> pl.DataFrame:
        """The payload as a frame; it is one already if the task itself read the records."""
        return unpack_frame(self.payload) if isinstance(self.payload, bytes) else self.payload


def of_piece(rows: Iterable[Packed], *, is_first: bool) -> Iterator[Packed]:
    """Yield rows as those of the first or of a later piece."""
    return iter(rows) if is_first else (row._replace(is_first=False) for row in rows)


def to_batches(rows: Iterable[Packed]) -> Iterator[pa.RecordBatch]:
    """Yield a batch per row, because payloads are large and Arrow's binary type ends at 2 GiB."""
    for row in rows:
        columns = [pa.array([value], field.type) for value, field in zip(row, PACKED, strict=True)]
        yield pa.RecordBatch.from_arrays(columns, schema=PACKED)


def from_batch(batch: pa.RecordBatch) -> Iterator[Packed]:
    """Yield the packed rows of a batch."""
    columns = (batch.column(name) for name in Packed._fields)
    for cells in zip(*columns, strict=True):
        yield Packed(*(cell.as_py() for cell in cells))


@dataclass(frozen=True, slots=True)
class Unpacker:
    """Conversion of one sink's packed output to rows.

    The object is a callable for ``mapInArrow``. ``schema`` is the schema of the rows, in Spark's form.
    """

    schema: pa.Schema

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Unpack a Spark task's output."""
        for batch in batches:
            for payload in batch.column("payload"):
                frame = unpack_frame(payload.as_py())
                if TIMESTAMP in frame.columns:
                    frame = frame.with_columns(pl.from_epoch(TIMESTAMP, "ms").dt.replace_time_zone("UTC"))
                if HEADERS in self.schema.names and HEADERS not in frame.columns:
                    frame = frame.with_columns(pl.lit(None).alias(HEADERS))
                table = to_arrow(frame, self.schema)
                yield from table.to_batches(max_chunksize=_OUTPUT_BATCH_ROWS)
