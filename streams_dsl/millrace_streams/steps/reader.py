"""Reader: a source's part of a plan, on decoded records.

It sets the event time of records and runs the stateless operators up to the first stateful one. It is stateless itself,
so it can run on any part of a partition.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import polars as pl

from millrace_streams.errors import UserFunctionError
from millrace_streams.frames.evaluation import polars_schema
from millrace_streams.functions import PythonFunction
from millrace_streams.graph import SourceNode
from millrace_streams.layout import Layout
from millrace_streams.serdes import JSON, serde_of_field
from millrace_streams.steps.batch import HEADERS, OFFSET, SEQUENCE, TIMESTAMP, TOMBSTONE, Batch, Rows
from millrace_streams.steps.deserialization import Deserializer, UnreadableError, plain_json
from millrace_streams.steps.flow import Inputs, Origin
from millrace_streams.steps.operator import Operator, State
from millrace_streams.steps.registry import make_step
from millrace_streams.steps.results import MISFITS


class Read(NamedTuple):
    """Output of a reader for one batch.

    ``batch`` has the rows for the task, ``rows`` the record of each row, and ``dropped`` the number of dropped records.
    """

    batch: Batch
    rows: Rows
    dropped: int


@dataclass(frozen=True, slots=True)
class Reader:
    """Source with the operators that directly follow it, ready to run.

    ``layout`` is the layout of the source.
    """

    source: SourceNode
    layout: Layout
    operators: Sequence[Operator]
    _nothing: State = field(default_factory=lambda: State({}), repr=False)

    def run(self, decoded: pl.DataFrame, partition: int) -> tuple[pl.DataFrame, int]:
        """Convert decoded records of one partition, in order, to the task's rows; also returns the number of dropped
        records.

        ``decoded`` has the source's columns, ``__offset`` and ``__timestamp`` (ms), and optionally ``__sequence`` and
        ``__headers``. Raises ``UserFunctionError`` with topic, partition and offset for a record without a valid event
        time, or if a user's function fails.
        """
        offsets = decoded[OFFSET].to_numpy()
        types = polars_schema(self.layout.schema)
        unread = [name for name in self.source.unread if name not in decoded.columns]
        decoded = decoded.with_columns(pl.lit(None, types[name]).alias(name) for name in unread)
        typed = Deserializer(self.source, self.layout, partition).columns(decoded)
        batch, rows, dropped = self.run_batch(Batch.of_frame(self.layout, typed), offsets, partition)
        frame = batch.frame
        reserved = [TIMESTAMP, TOMBSTONE] if TOMBSTONE in frame.columns else [TIMESTAMP]
        beside = [decoded[name] for name in (OFFSET, SEQUENCE) if name in decoded.columns]
        if HEADERS in decoded.columns and decoded[HEADERS].null_count() < decoded.height:
            beside.append(decoded[HEADERS])
        # Without operators all rows are kept, except dropped ones.
        places = [column.gather(rows) for column in beside] if self.operators or dropped else beside
        return frame.select(*batch.layout.names, *reserved).with_columns(places), dropped

    def run_batch(self, batch: Batch, offsets: Rows, partition: int) -> Read:
        """Run the reader on a batch."""
        read = self._with_event_time(self._with_plain_keys(batch, offsets, partition), offsets, partition)
        batch, rows, dropped = read
        for operator in self.operators:
            output = make_step(operator).run(self._inputs(batch, offsets[rows], partition), self._nothing)
            batch = output.batch
            dropped += output.dropped
            if output.causes is not None:
                rows = rows[np.asarray(output.causes, dtype=np.int64)]
        return Read(batch, rows, dropped)

    def _inputs(self, batch: Batch, offsets: Rows, partition: int) -> Inputs:
        return Inputs(
            batches=(batch,),
            marks=offsets[:, np.newaxis],  # the root marks, because nothing forks or moves before the task
            sides=np.zeros(batch.height, dtype=np.int64),
            rows=np.arange(batch.height),
            origin=lambda offset: Origin(self.source.topic, partition, offset),
        )

    def _with_plain_keys(self, batch: Batch, offsets: Rows, partition: int) -> Batch:
        """Write keys in JSON as functions would, so that equal keys have equal cells."""
        for name in batch.layout.key:
            if serde_of_field(batch.layout.schema.field(name)).name == JSON.name:
                try:
                    plain = plain_json(batch.frame[name])
                except UnreadableError as error:
                    raise self._unreadable_key(int(offsets[error.row]), partition, str(error)) from error.__cause__
                if plain is not None:
                    batch = Batch.of_frame(batch.layout, batch.frame.with_columns(plain))
        return batch

    def _unreadable_key(self, offset: int, partition: int, why: str) -> UserFunctionError:
        source = self.source
        return UserFunctionError(
            f"{source.name}: the key of the record at offset {offset} of {source.topic}-{partition} is not a valid "
            f"json: {why}",
            node=source.name,
            topic=source.topic,
            partition=partition,
            offset=offset,
        )

    def _with_event_time(self, batch: Batch, offsets: Rows, partition: int) -> Read:
        """Set the event time. As in Kafka Streams, records for which the extractor returns a negative one are dropped
        and counted.
        """
        kept = np.arange(batch.height)
        if self.source.extractor is not None:
            times = self._extracted(self.source.extractor, batch, offsets, partition)
            batch, negative = batch.with_times(times), (times < 0).arg_true().to_numpy()
            if len(negative):
                kept = np.delete(kept, negative)
                batch = batch.take(kept)
        elif self.source.timestamp is not None:
            time = pl.col(self.source.timestamp)
            if batch.frame.schema[self.source.timestamp].is_temporal():
                time = time.dt.timestamp("ms")
            batch = batch.with_times(batch.frame.select(time.cast(pl.Int64).alias(TIMESTAMP)).to_series())
        self._check_times(batch, offsets[kept], partition)
        return Read(batch, kept, len(offsets) - len(kept))

    def _extracted(self, extractor: PythonFunction, batch: Batch, offsets: Rows, partition: int) -> pl.Series:
        inputs = self._inputs(batch, offsets, partition)
        keys = batch.keys if extractor.takes_key else ()
        times = inputs.call(self.source.name, extractor, range(batch.height), keys, batch.values, batch.times)
        try:
            return pl.Series(TIMESTAMP, times, dtype=pl.Int64)
        except MISFITS as error:
            row = next(row for row, time_ms in enumerate(times) if not _fits(time_ms))
            text = f"{extractor} must give the event time in whole ms since 1970, and not {times[row]!r}"
            raise inputs.failure(self.source.name, text, row) from error

    def _check_times(self, batch: Batch, offsets: Rows, partition: int) -> None:
        times = batch.frame[TIMESTAMP]
        invalid = (times.is_null() | (times < 0)).arg_true()
        if len(invalid):
            source, first = self.source, int(offsets[invalid[0]])
            raise UserFunctionError(
                f"{source.name}: {len(invalid)} records without a valid event time in "
                f"{source.timestamp or TIMESTAMP}, the first at offset {first} of {source.topic}-{partition}: filter "
                "them out where they are produced, or choose another timestamp column",
                node=source.name,
                topic=source.topic,
                partition=partition,
                offset=first,
            )


def _fits(time_ms: object) -> bool:
    """Return whether a column of times can hold an extracted time."""
    try:
        pl.Series([time_ms], dtype=pl.Int64)
    except MISFITS:
        return False
    return True
