"""The aggregation step: counts, sums, means by key and window, over all keys of a batch at once.

Record-order semantics of Kafka Streams:

* a record without a key is skipped and does not move stream time; one whose value is null is skipped unless there is a
  window;
* stream time is the largest timestamp seen by *this* operator in this bucket, the record's own included, over all keys;
* a record is dropped for a window (not for others that it falls into) if ``window end + grace <= stream time``;
* a result carries the largest timestamp of the records in it.

State rows are the key, the window's start in ms, the accumulators and that timestamp.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Final

import numpy as np
import polars as pl

from millrace_streams.graph import AggregateNode
from millrace_streams.layout import VALUE, WINDOW_END, WINDOW_START, Layout
from millrace_streams.steps.accumulators import AccumulatedAggregate, Accumulator, accumulate
from millrace_streams.steps.evaluation import polars_schema
from millrace_streams.steps.records import OFFSET, TIMESTAMP, empty_records
from millrace_streams.steps.store import StateDelta, Store, StoreSpec

_WINDOW: Final = "__window"
_STREAM_TIME: Final = "__stream_time"
_ROW: Final = "__row"
_MEMBER: Final = "__member"
_STATE_ROW: Final = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class StepResult:
    """What a stateful step gives for a batch.

    ``dropped`` is Kafka's ``dropped-records``: records that were skipped, and windows for which one came too late.
    """

    output: pl.DataFrame
    delta: StateDelta | None
    dropped: int


@dataclass(frozen=True)
class AggregateStep:
    """The step of one ``AggregateNode``; ``given`` and ``result`` are the layouts of its input and output."""

    node: AggregateNode
    given: Layout
    result: Layout

    @cached_property
    def store(self) -> StoreSpec:
        """The store that the step reads and changes."""
        types = polars_schema(self.given.schema)
        columns: dict[str, pl.DataType] = {name: types[name] for name in self.given.key}
        window = self.node.window
        if window is not None:
            columns[_WINDOW] = pl.Int64()
        columns |= {accumulator.name: accumulator.data_type for accumulator in self._accumulators}
        columns[TIMESTAMP] = pl.Int64()
        return StoreSpec(
            name=self.node.store,
            schema=pl.Schema(columns),
            key=tuple(self._group),
            window=_WINDOW if window is not None else None,
            advance_ms=window.advance_ms if window is not None else 1,
            retention_ms=window.retention_ms if window is not None else 0,
        )

    def apply(self, state: Store, batch: pl.DataFrame) -> StepResult:
        """Aggregate a batch in record order. ``state`` is only read."""
        records = self._with_key(batch)
        stream_time = pl.max_horizontal(pl.col(TIMESTAMP).cum_max(), pl.lit(state.stream_time_ms, pl.Int64))
        records = records.with_columns(stream_time.alias(_STREAM_TIME)).with_row_index(_ROW)
        placed = self._in_windows(records)
        accepted = self._open(placed)
        dropped = (batch.height - records.height) + (placed.height - accepted.height)
        if not accepted.height:
            return StepResult(output=empty_records(polars_schema(self.result.schema)), delta=None, dropped=dropped)
        lifted = accepted.select(
            *self._group,
            *(accumulator.lift.alias(accumulator.name) for accumulator in self._accumulators),
            TIMESTAMP,
            OFFSET,
            pl.col(_ROW).cast(pl.Int64),
        )
        known = state.matching(lifted.select(self._group).unique()).with_columns(
            pl.lit(_STATE_ROW, pl.Int64).alias(OFFSET), pl.lit(_STATE_ROW, pl.Int64).alias(_ROW)
        )
        every = self.node.emit == "every"
        lifted = pl.concat([known.select(lifted.columns), lifted])
        folded = self._fold_every(lifted) if every else self._fold_last(lifted)
        newest = folded.unique(self._group, keep="last", maintain_order=True) if every else folded
        latest_ms = records[_STREAM_TIME][-1]
        delta = StateDelta(rows=newest.select(self.store.schema.names()), stream_time_ms=latest_ms)
        return StepResult(output=self._results(folded), delta=delta, dropped=dropped)

    @cached_property
    def _aggregates(self) -> tuple[AccumulatedAggregate, ...]:
        schema = polars_schema(self.given.schema)
        return tuple(accumulate(name, value, schema, self.node.name) for name, value in self.node.aggregates)

    @cached_property
    def _accumulators(self) -> tuple[Accumulator, ...]:
        return tuple(accumulator for aggregate in self._aggregates for accumulator in aggregate.accumulators)

    @cached_property
    def _group(self) -> list[str]:
        return [*self.given.key, _WINDOW] if self.node.window is not None else list(self.given.key)

    def _with_key(self, batch: pl.DataFrame) -> pl.DataFrame:
        """The records that count: a key is null if all its columns are; null values count in windows only."""
        there = pl.any_horizontal([pl.col(name).is_not_null() for name in self.given.key])
        if self.node.window is None and self.given.scalar:
            there &= pl.col(VALUE).is_not_null()
        return batch.filter(there)

    def _in_windows(self, records: pl.DataFrame) -> pl.DataFrame:
        """One row per record and window that it falls into, in record order, windows ascending."""
        window = self.node.window
        if window is None:
            return records
        time = pl.col(TIMESTAMP)
        if window.tumbling:
            return records.with_columns((time // window.size_ms * window.size_ms).alias(_WINDOW))
        # As Kafka Streams: no window begins before the epoch.
        first = pl.max_horizontal(time - window.size_ms + window.advance_ms, pl.lit(0, pl.Int64))
        first = first // window.advance_ms * window.advance_ms
        starts = pl.int_ranges(first, time + 1, window.advance_ms)
        return records.with_columns(starts.alias(_WINDOW)).explode(_WINDOW)

    def _open(self, placed: pl.DataFrame) -> pl.DataFrame:
        """Those whose window is open when the record comes."""
        window = self.node.window
        if window is None:
            return placed
        return placed.filter(pl.col(_WINDOW) + window.size_ms + window.grace_ms > pl.col(_STREAM_TIME))

    def _fold_last(self, lifted: pl.DataFrame) -> pl.DataFrame:
        """One row per group: all that is in it folded; in the order of the groups' last records."""
        sequential = [accumulator for accumulator in self._accumulators if accumulator.fold == "sequential_sum"]
        folds = [_last_fold(accumulator) for accumulator in self._accumulators if accumulator not in sequential]
        folds += [pl.col(TIMESTAMP).max(), pl.col(OFFSET).last(), pl.col(_ROW).last()]
        if sequential:
            lifted = lifted.with_row_index(_MEMBER)
            folds.append(pl.col(_MEMBER))
        folded = lifted.group_by(self._group, maintain_order=True).agg(folds)
        if sequential:
            members = folded[_MEMBER].explode().to_numpy()
            counts = folded[_MEMBER].list.len().to_numpy()
            groups = np.repeat(np.arange(len(counts)), counts)
            # bincount adds weights one after the other, in the order given.
            sums = {
                accumulator.name: np.bincount(
                    groups, weights=lifted[accumulator.name].to_numpy()[members], minlength=len(counts)
                )
                for accumulator in sequential
            }
            folded = folded.with_columns(**{name: pl.Series(values) for name, values in sums.items()})
        return folded.sort(_ROW)

    def _fold_every(self, lifted: pl.DataFrame) -> pl.DataFrame:
        """One row per record: the group's fold up to and including it."""
        running = {each.name: _running_fold(each).over(self._group) for each in self._accumulators}
        running[TIMESTAMP] = pl.col(TIMESTAMP).cum_max().over(self._group)
        return lifted.with_columns(**running).filter(pl.col(_ROW) != _STATE_ROW)

    def _results(self, folded: pl.DataFrame) -> pl.DataFrame:
        columns: list[pl.Expr] = [pl.col(name) for name in self.given.key]
        window = self.node.window
        if window is not None:
            columns += [
                _timestamp(pl.col(_WINDOW)).alias(WINDOW_START),
                _timestamp(pl.col(_WINDOW) + window.size_ms).alias(WINDOW_END),
            ]
        columns += [aggregate.result.alias(aggregate.name) for aggregate in self._aggregates]
        return folded.select(*columns, TIMESTAMP, OFFSET)


def _timestamp(time_ms: pl.Expr) -> pl.Expr:
    return (time_ms * 1000).cast(pl.Datetime("us", "UTC"))


def _last_fold(accumulator: Accumulator) -> pl.Expr:
    column = pl.col(accumulator.name)
    match accumulator.fold:
        case "sum" | "sequential_sum":
            return column.sum()
        case "min":
            return column.min()
        case "max":
            return column.nan_max() if accumulator.data_type.is_float() else column.max()


def _running_fold(accumulator: Accumulator) -> pl.Expr:
    column = pl.col(accumulator.name)
    match accumulator.fold:
        case "sum" | "sequential_sum":
            return column.cum_sum()
        case "min":
            return column.cum_min().forward_fill()
        case "max":
            largest = column.cum_max().forward_fill()
            if not accumulator.data_type.is_float():
                return largest
            not_a_number = column.is_nan().fill_null(False).cum_max()
            return pl.when(not_a_number).then(pl.lit(float("nan"), accumulator.data_type)).otherwise(largest)
