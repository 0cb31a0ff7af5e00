"""Packed rows: the form in which batches cross Spark, one Spark row for many records.

Spark hands rows to Python one by one where state is kept, which no vectorised step survives. So a run of records of
one bucket travels as one row: ``bucket`` (the source partition), ``source`` (which reader's), ``sequence`` (the run's
first offset), ``records`` (how many were read for it) and ``payload`` (an Arrow IPC stream of what the reader's part of
the plan left of them). What a task gives travels alike: ``sink``, ``rows``, ``payload``, and in one row without a sink
``records`` and ``dropped``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final, cast

import polars as pl
import pyarrow as pa

from millrace_streams.steps.batch import OFFSET, PARTITION, TIMESTAMP, TOMBSTONE
from millrace_streams.steps.chunks import pack_frame, unpack_frame
from millrace_streams.steps.evaluation import to_arrow
from millrace_streams.steps.reader import Reader

PACKED_DDL: Final = "bucket INT, source INT, sequence BIGINT, records BIGINT, payload BINARY"
_PACKED: Final = pa.schema(
    [
        ("bucket", pa.int32()),
        ("source", pa.int32()),
        ("sequence", pa.int64()),
        ("records", pa.int64()),
        ("payload", pa.binary()),
    ]
)

OUTPUT_DDL: Final = "sink STRING, rows BIGINT, records BIGINT, dropped BIGINT, payload BINARY"
OUTPUT: Final = pa.schema(
    [
        ("sink", pa.string()),
        ("rows", pa.int64()),
        ("records", pa.int64()),
        ("dropped", pa.int64()),
        ("payload", pa.binary()),
    ]
)

ROWS_PER_PAYLOAD: Final = 262_144
_BYTES_PER_PAYLOAD_MAX: Final = 16 * 2**20
_OUTPUT_BATCH_ROWS: Final = 20_000


@dataclass(frozen=True, slots=True)
class Packer:
    """Runs the reader's part of a plan on decoded batches and packs what is left of them.

    A callable for ``mapInArrow`` and for the source's ``transform``: takes batches of the source's columns,
    ``__offset``, ``__timestamp`` (a timestamp) and ``__partition``, and may be ``__sequence``; gives batches of packed
    rows. Within one partition the batches must come in offset order, as the source reads them. ``source`` is the
    reader's number in the plan. A broadcast source's records go to all of so many ``buckets``.
    """

    reader: Reader
    source: int = 0
    buckets: int | None = None

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Pack a task's batches."""
        pending: list[pa.RecordBatch] = []
        rows = size_bytes = 0
        for batch in batches:
            pending.append(batch)
            rows += batch.num_rows
            size_bytes += batch.nbytes
            if rows >= ROWS_PER_PAYLOAD or size_bytes >= _BYTES_PER_PAYLOAD_MAX:
                yield from self._pack(pending)
                pending, rows, size_bytes = [], 0, 0
        yield from self._pack(pending)

    def _pack(self, batches: list[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        if not batches:
            return
        decoded = cast("pl.DataFrame", pl.from_arrow(pa.Table.from_batches(batches)))
        decoded = decoded.with_columns(pl.col(TIMESTAMP).dt.timestamp("ms"))
        for (partition,), run in decoded.partition_by(PARTITION, as_dict=True, maintain_order=True).items():
            payload = pack_frame(self.reader.run(run, partition))
            buckets = [partition] if self.buckets is None else range(self.buckets)
            for place, bucket in enumerate(buckets):
                # A run of which nothing is left goes on as well: its records are counted, each once.
                yield packed_row(_PACKED, bucket, self.source, run[OFFSET][0], 0 if place else run.height, payload)


def packed_row(schema: pa.Schema, *values: object) -> pa.RecordBatch:
    """One row as a batch; a batch per row, because payloads are large and Arrow's binary ends at 2 GiB."""
    columns = [pa.array([value], field.type) for value, field in zip(values, schema, strict=True)]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def unpack_run(payloads: Iterable[tuple[int, bytes]]) -> pl.DataFrame:
    """Put the runs of one bucket, given as (sequence, payload), back into record order."""
    runs = [unpack_frame(payload) for _, payload in sorted(payloads, key=lambda run: run[0])]
    records = runs[0]
    if len(runs) > 1:
        records = pl.concat(runs, how="diagonal")
        if TOMBSTONE in records.columns:
            # Runs without a tombstone have no column of marks.
            records = records.with_columns(pl.col(TOMBSTONE).fill_null(False))
    if records[OFFSET].is_sorted():
        return records
    # The runs overlapped: the DataFrame did not come from a log, but was cut in another way.
    return records.sort(OFFSET, maintain_order=True)


@dataclass(frozen=True, slots=True)
class Unpacker:
    """Turns packed outputs of one sink into rows of ``schema`` (as Spark expects it); a callable for ``mapInArrow``."""

    schema: pa.Schema

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Unpack a Spark task's outputs."""
        for batch in batches:
            for payload in batch.column("payload"):
                table = to_arrow(unpack_frame(payload.as_py()), self.schema)
                yield from table.to_batches(max_chunksize=_OUTPUT_BATCH_ROWS)
