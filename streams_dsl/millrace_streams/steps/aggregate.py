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

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

import numpy as np
import polars as pl

from millrace_streams.graph import AggregateNode
from millrace_streams.layout import WINDOW_END, WINDOW_START
from millrace_streams.steps.accumulators import AccumulatedAggregate, Accumulator, accumulate
from millrace_streams.steps.batch import NO_TIMESTAMP, TIMESTAMP, Batch, empty_batch
from millrace_streams.steps.codec import columns_of
from millrace_streams.steps.evaluation import polars_schema
from millrace_streams.steps.flow import Inputs, Output
from millrace_streams.steps.groups import counts
from millrace_streams.steps.operator import AnyStoreSpec, Operator, State
from millrace_streams.steps.store import StateDelta, Store, StoreSpec
from millrace_streams.stores.base import Stored

_WINDOW: Final = "__window"
_STREAM_TIME: Final = "__stream_time"
_ROW: Final = "__row"
_MEMBER: Final = "__member"
_HAD: Final = "__had"
_COUNTS: Final = "__counts"
_STATE_ROW: Final = -1


@dataclass(frozen=True)
class AggregateStep:
    """The step of one ``AggregateNode``."""

    operator: Operator

    @property
    def node(self) -> AggregateNode:
        """The node."""
        node = self.operator.node
        assert isinstance(node, AggregateNode)
        return node

    @property
    def stores(self) -> tuple[AnyStoreSpec, ...]:
        """The one store."""
        return (self.store,)

    @cached_property
    def store(self) -> StoreSpec:
        """The store that the step reads and changes."""
        types = polars_schema(self.operator.given.schema)
        columns: dict[str, pl.DataType] = {name: types[name] for name in self.operator.given.key_columns}
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

    def run(self, inputs: Inputs, state: State) -> Output:
        """Aggregate a batch in record order. The change of state is left in ``state.pending``."""
        store = state.stores[self.node.store]
        assert isinstance(store, Store)
        batch = inputs.batch
        records = self._records(batch)
        stream_time = pl.max_horizontal(pl.col(TIMESTAMP).cum_max(), pl.lit(store.stream_time_ms, pl.Int64))
        records = records.with_columns(stream_time.alias(_STREAM_TIME))
        placed = self._in_windows(records)
        accepted = self._open(placed)
        dropped = (batch.height - records.height) + (placed.height - accepted.height)
        if not accepted.height:
            return Output(empty_batch(self.operator.result), [], dropped)
        lifted = accepted.drop(_STREAM_TIME)
        if self.node.emit == "every" and self._whole_sums:
            folded, newest = self._running_sums(lifted, store)
        elif self.node.emit == "every":
            folded = self._fold_every(self._after_state(lifted, store))
            newest = folded.unique(self._group, keep="last", maintain_order=True)
        else:
            # Most folds may be done in parts: state is then asked for and changed by group, not by record.
            parts = lifted if self._sequential else self._fold_last(lifted)
            folded = newest = self._fold_last(self._after_state(parts, store))
        delta_rows = newest.select(self.store.schema.names())
        state.pending[self.node.store] = StateDelta(rows=delta_rows, stream_time_ms=records[_STREAM_TIME][-1])
        return Output(self._changes(folded), folded[_ROW].to_numpy(), dropped)

    def lookup(self, store: Store, keys: Iterable[Any]) -> dict[Any, Stored]:
        """The table's rows of these keys, as the store holds them."""
        wanted = list(keys)
        if not wanted:
            return {}
        layout = self.operator.result
        columns = columns_of(layout, wanted, [None] * len(wanted))
        frame = pl.DataFrame([column for column in columns if column.name in layout.key_columns])
        if self.node.window is not None:
            start = pl.col(WINDOW_START).dt.timestamp("ms").alias(_WINDOW)
            frame = frame.select(*layout.key, start)
        rows = store.matching(frame.unique())
        batch = Batch.of_frame(layout, self._results(rows))
        found = zip(batch.keys, batch.values, batch.times, strict=True)
        return {key: Stored(value, time_ms) for key, value, time_ms in found}

    def table(self, store: Store) -> Batch:
        """All rows of the table."""
        return Batch.of_frame(self.operator.result, self._results(store.rows()))

    def _changes(self, folded: pl.DataFrame) -> Batch:
        """The results as changes, with the results before them if these are asked for."""
        result = self.operator.result
        if not self.node.sends_old:
            return Batch.of_frame(result, self._results(folded))
        had = folded[_HAD].to_list()
        before = folded.select(
            *self._group, *(pl.col(_old(each.name)).alias(each.name) for each in self._accumulators), TIMESTAMP
        )
        values = Batch.of_frame(result, self._results(before)).values
        # As Kafka Streams, a count's first change replaces 0; other aggregates have no value of nothing.
        nothing = 0 if self.node.bare and self.node.aggregates[0][1].kind == "count" else None
        olds = [value if there else nothing for value, there in zip(values, had, strict=True)]
        return Batch.of_frame(result, self._results(folded), olds=olds)

    @cached_property
    def _aggregates(self) -> tuple[AccumulatedAggregate, ...]:
        schema = polars_schema(self.operator.given.schema)
        return tuple(accumulate(name, value, schema, self.node.name) for name, value in self.node.aggregates)

    @cached_property
    def _accumulators(self) -> tuple[Accumulator, ...]:
        return tuple(accumulator for aggregate in self._aggregates for accumulator in aggregate.accumulators)

    @cached_property
    def _group(self) -> list[str]:
        key = self.operator.given.key_columns
        return [*key, _WINDOW] if self.node.window is not None else list(key)

    @cached_property
    def _sequential(self) -> list[Accumulator]:
        """The accumulators whose records must be added one after the other."""
        return [accumulator for accumulator in self._accumulators if accumulator.fold == "sequential_sum"]

    @cached_property
    def _whole_sums(self) -> bool:
        """Whether all folds are sums of whole numbers, which may be taken in any order."""
        return all(each.fold == "sum" and each.data_type == pl.Int64() for each in self._accumulators)

    def _after_state(self, lifted: pl.DataFrame, store: Store) -> pl.DataFrame:
        """Lifted rows with the state's rows of their groups before them, as if these were records too."""
        known = store.matching(lifted.select(self._group).unique())
        known = known.with_columns(pl.lit(_STATE_ROW, pl.Int64).alias(_ROW))
        return pl.concat([known.select(lifted.columns), lifted])

    def _running_sums(self, lifted: pl.DataFrame, store: Store) -> tuple[pl.DataFrame, pl.DataFrame]:
        """One row per record with its group's sums up to and including it, and of each group the last of these.

        Groups are looked for once: a group's running sum is the one over all records, group by group, less what the
        groups before it came to.
        """
        members = lifted.select(self._group).with_row_index(_MEMBER)
        groups = members.group_by(self._group, maintain_order=True).agg(pl.col(_MEMBER))
        order = groups[_MEMBER].explode().to_numpy()
        lengths = groups[_MEMBER].list.len().to_numpy().astype(np.int64)
        ends = np.cumsum(lengths)
        group_of = np.empty(len(order), dtype=np.int64)
        group_of[order] = np.repeat(np.arange(len(lengths)), lengths)
        keys = groups.select(self._group)
        known = keys.join(store.matching(keys), on=self._group, how="left", nulls_equal=True, maintain_order="left")
        columns: dict[str, pl.Series] = {}
        for each in self._accumulators:
            own = lifted[each.name].to_numpy()
            running = np.cumsum(own[order])
            before = np.concatenate([[0], running[ends[:-1] - 1]]) if len(ends) > 1 else np.zeros(1, dtype=np.int64)
            found = np.empty_like(running)
            found[order] = running
            found += (known[each.name].fill_null(0).to_numpy() - before)[group_of]
            columns[each.name] = pl.Series(found)
            if self.node.sends_old:
                columns[_old(each.name)] = pl.Series(found - own)
        times = lifted[TIMESTAMP]
        if not times.is_sorted():
            times = lifted.select(pl.col(TIMESTAMP).cum_max().over(self._group)).to_series()
        stored_times = known[TIMESTAMP].fill_null(NO_TIMESTAMP).to_numpy()
        columns[TIMESTAMP] = pl.Series(np.maximum(times.to_numpy(), stored_times[group_of]))
        if self.node.sends_old:
            begun = np.ones(len(order), dtype=np.bool_)
            begun[order[ends - lengths]] = known[TIMESTAMP].is_not_null().to_numpy()
            columns[_HAD] = pl.Series(begun)
        folded = lifted.with_columns(**columns)
        return folded, folded[order[ends - 1]]

    def _records(self, batch: Batch) -> pl.DataFrame:
        """The records that count: key, lifted accumulators, time and row; null values count in windows only."""
        given, frame = self.operator.given, batch.frame
        there = counts(given, frame.columns, needs_value=self.node.window is None)
        records = frame.select(
            *given.key_columns,
            *(accumulator.lift.alias(accumulator.name) for accumulator in self._accumulators),
            TIMESTAMP,
            pl.int_range(pl.len(), dtype=pl.Int64).alias(_ROW),
            there.alias(_COUNTS),
        )
        return (records if records[_COUNTS].all() else records.filter(_COUNTS)).drop(_COUNTS)

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
        is_open = pl.col(_WINDOW) + window.size_ms + window.grace_ms > pl.col(_STREAM_TIME)
        flags = placed.select(is_open).to_series()
        return placed if flags.all() else placed.filter(flags)

    def _fold_last(self, lifted: pl.DataFrame) -> pl.DataFrame:
        """One row per group: all that is in it folded; in the order of the groups' last records."""
        sequential = self._sequential
        folds = [_last_fold(accumulator) for accumulator in self._accumulators if accumulator not in sequential]
        folds += [pl.col(TIMESTAMP).max(), pl.col(_ROW).last()]
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
        folded = lifted.with_columns(**running)
        if self.node.sends_old:
            before = {_old(each.name): pl.col(each.name).shift(1).over(self._group) for each in self._accumulators}
            had = pl.col(_ROW).shift(1).over(self._group).is_not_null().alias(_HAD)
            folded = folded.with_columns(had, **before)
        return folded.filter(pl.col(_ROW) != _STATE_ROW)

    def _results(self, folded: pl.DataFrame) -> pl.DataFrame:
        columns: list[pl.Expr] = [pl.col(name) for name in self.operator.given.key_columns]
        window = self.node.window
        if window is not None:
            columns += [
                _timestamp(pl.col(_WINDOW)).alias(WINDOW_START),
                _timestamp(pl.col(_WINDOW) + window.size_ms).alias(WINDOW_END),
            ]
        columns += [aggregate.result.alias(aggregate.name) for aggregate in self._aggregates]
        return folded.select(*columns, TIMESTAMP)


def _old(name: str) -> str:
    return f"__old.{name}"


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
