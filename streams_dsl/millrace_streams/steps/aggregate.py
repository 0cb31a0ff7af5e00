"""Aggregation step by key and window, for all keys at once.

Semantics of Kafka Streams in record order:

* a record without a key is skipped and does not advance stream time; one with a null value is skipped unless there is a
  window;
* stream time is the largest timestamp that *this* operator has seen in this bucket, including the current record, over
  all keys;
* a record is dropped for a window (but not for its other windows) if ``window end + grace <= stream time``;
* a result has the largest timestamp of its records.

State rows have the key, the window's start in ms, the accumulators and that timestamp. If the node says so, the input
is partial aggregates of records (``millrace_streams.steps.partial_aggregate``).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final, NamedTuple

import numpy as np
import polars as pl

from millrace_streams.frames.codec import columns_of, window_columns
from millrace_streams.graph import AggregateNode
from millrace_streams.layout import WINDOW_START
from millrace_streams.steps.accumulators import WHOLE_SUM, SumTooLargeError, check_decimals
from millrace_streams.steps.batch import NO_TIMESTAMP, TIMESTAMP, Batch, Rows, empty_batch
from millrace_streams.steps.flow import Inputs, Output
from millrace_streams.steps.lifting import MEMBER, ROW, Lifting
from millrace_streams.steps.operator import AnyStore, AnyStoreSpec, Operator, State
from millrace_streams.steps.partial_aggregate import RECORDS, RUN
from millrace_streams.steps.store import StateDelta, Store, StoreSpec
from millrace_streams.steps.window_assignment import STREAM_TIME, WINDOW, in_open_windows, in_windows, newest_start_ms
from millrace_streams.stores.base import Stored

_HAD: Final = "__had"
_STATE_ROW: Final = -1


class _Arrived(NamedTuple):
    """Lifted rows of a batch whose windows are open.

    ``dropped`` counts the dropped records, and ``stream_times`` has the stream time after each turn.
    """

    lifted: pl.DataFrame
    dropped: int
    turns: Rows
    stream_times: Rows


@dataclass(frozen=True)
class AggregateStep:
    """Step of one ``AggregateNode``."""

    operator: Operator

    @property
    def node(self) -> AggregateNode:
        """The node."""
        node = self.operator.node
        assert isinstance(node, AggregateNode)
        return node

    @property
    def stores(self) -> tuple[AnyStoreSpec, ...]:
        """The single store."""
        return (self.store,)

    @cached_property
    def store(self) -> StoreSpec:
        """The store that the step reads and updates."""
        window = self.node.window
        return StoreSpec(
            name=self.node.store,
            schema=pl.Schema(self.lifting.state_columns),
            key=tuple(self.lifting.group),
            window=WINDOW if window is not None else None,
            advance_ms=window.advance_ms if window is not None else 1,
            retention_ms=window.retention_ms if window is not None else 0,
        )

    def run(self, inputs: Inputs, state: State) -> Output:
        """Aggregate a batch in record order, and put the state change into ``state.pending``."""
        store = state.stores[self.node.store]
        assert isinstance(store, Store)
        arrive = self._records if self.node.records is None else self._partials
        arrived = arrive(inputs.batch, store)
        lifted, expiry = arrived.lifted, state.expiries.get(self.node.store)
        if expiry is not None:
            newest_ms = newest_start_ms(arrived.stream_times, self.store.advance_ms)
            expiry.move(inputs.marks[arrived.turns], newest_ms - self.store.retention_ms + 1)
        if not lifted.height:
            return Output(empty_batch(self.operator.result), [], arrived.dropped)
        folded, newest = self._folded(lifted, store, inputs)
        delta_rows = newest.select(self.store.schema.names())
        state.pending[self.node.store] = StateDelta(rows=delta_rows, stream_time_ms=int(arrived.stream_times[-1]))
        return Output(self._changes(folded), folded[ROW].to_numpy(), arrived.dropped)

    def _folded(self, lifted: pl.DataFrame, store: Store, inputs: Inputs) -> tuple[pl.DataFrame, pl.DataFrame]:
        """Return the rows of the results, and the newest row of each group.

        Raises ``UserFunctionError`` for the record with which a sum has too many digits.
        """
        if self.node.emit == "every" and self._whole_sums:
            return self._running_sums(lifted, store)
        # Most folds can be split: then state is read and changed by group, not by record.
        is_split = self.node.emit == "last" and self.lifting.is_splittable
        rows = self._after_state(self.lifting.fold(lifted) if is_split else lifted, store)
        try:
            folded = self._fold_every(rows) if self.node.emit == "every" else self.lifting.fold(rows)
        except SumTooLargeError as error:
            raise inputs.failure(self.node.name, str(error), rows[ROW][error.row]) from error
        if self.node.emit == "every":
            return folded, folded.unique(self.lifting.group, keep="last", maintain_order=True)
        return folded, folded

    def lookup(self, store: AnyStore, keys: Iterable[Any]) -> dict[Any, Stored]:
        """Return the table's rows of these keys, as stored."""
        assert isinstance(store, Store)
        wanted = list(keys)
        layout = self.operator.result
        columns = columns_of(layout, wanted, [None] * len(wanted))
        frame = pl.DataFrame([column for column in columns if column.name in layout.key_columns])
        if self.node.window is not None:
            start = pl.col(WINDOW_START).dt.timestamp("ms").alias(WINDOW)
            frame = frame.select(*layout.key, start)
        rows = store.matching(frame.unique())
        batch = Batch.of_frame(layout, self._results(rows))
        found = zip(batch.keys, batch.values, batch.times, strict=True)
        return {key: Stored(value, time_ms) for key, value, time_ms in found}

    def _changes(self, folded: pl.DataFrame) -> Batch:
        """Return the results as changes, with the old results if needed."""
        result = self.operator.result
        if not self.node.sends_old:
            return Batch.of_frame(result, self._results(folded))
        had = folded[_HAD].to_list()
        before = folded.select(
            *self.lifting.group,
            *(pl.col(_old(each.name)).alias(each.name) for each in self.lifting.accumulators),
            TIMESTAMP,
        )
        values = Batch.of_frame(result, self._results(before)).values
        # As in Kafka Streams, a count's first change replaces 0; other aggregates have no initial value.
        nothing = 0 if self.node.bare and self.node.aggregates[0][1].kind == "count" else None
        olds = [value if there else nothing for value, there in zip(values, had, strict=True)]
        return Batch.of_frame(result, self._results(folded), olds=olds)

    @cached_property
    def lifting(self) -> Lifting:
        """Conversion of records to state rows."""
        node, given = self.node, self.operator.given
        return Lifting(node.name, node.aggregates, node.window, node.records or given.schema, given.key_columns)

    @cached_property
    def _whole_sums(self) -> bool:
        """True if all folds are sums of whole numbers, which can be added in any order."""
        return all(each.fold is WHOLE_SUM for each in self.lifting.accumulators)

    def _after_state(self, lifted: pl.DataFrame, store: Store) -> pl.DataFrame:
        """Return lifted rows, preceded by the state rows of their groups as if these were records."""
        known = store.matching(lifted.select(self.lifting.group).unique())
        known = known.with_columns(pl.lit(_STATE_ROW, pl.Int64).alias(ROW))
        return pl.concat([known.select(lifted.columns), lifted])

    def _running_sums(self, lifted: pl.DataFrame, store: Store) -> tuple[pl.DataFrame, pl.DataFrame]:
        """Return one row per record with its group's sums up to this record, and the last of them per group.

        Groups are determined once. A group's running sum is the cumulative sum over all records, sorted by group, minus
        the total of the preceding groups.
        """
        members = lifted.select(self.lifting.group).with_row_index(MEMBER)
        groups = members.group_by(self.lifting.group, maintain_order=True).agg(pl.col(MEMBER))
        order = groups[MEMBER].explode().to_numpy()
        lengths = groups[MEMBER].list.len().to_numpy().astype(np.int64)
        ends = np.cumsum(lengths)
        group_of = np.empty(len(order), dtype=np.int64)
        group_of[order] = np.repeat(np.arange(len(lengths)), lengths)
        keys = groups.select(self.lifting.group)
        known = keys.join(
            store.matching(keys), on=self.lifting.group, how="left", nulls_equal=True, maintain_order="left"
        )
        columns: dict[str, pl.Series] = {}
        for each in self.lifting.accumulators:
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
            times = lifted.select(pl.col(TIMESTAMP).cum_max().over(self.lifting.group)).to_series()
        stored_times = known[TIMESTAMP].fill_null(NO_TIMESTAMP).to_numpy()
        columns[TIMESTAMP] = pl.Series(np.maximum(times.to_numpy(), stored_times[group_of]))
        if self.node.sends_old:
            begun = np.ones(len(order), dtype=np.bool_)
            begun[order[ends - lengths]] = known[TIMESTAMP].is_not_null().to_numpy()
            columns[_HAD] = pl.Series(begun)
        folded = lifted.with_columns(**columns)
        return folded, folded[order[ends - 1]]

    def _records(self, batch: Batch, store: Store) -> _Arrived:
        """Return the lifted records of a batch in the open windows."""
        lifting = self.lifting
        records = lifting.records(batch, self.operator.given)
        stream_time = pl.max_horizontal(pl.col(TIMESTAMP).cum_max(), pl.lit(store.stream_time_ms, pl.Int64))
        records = records.with_columns(stream_time.alias(STREAM_TIME))
        placed = in_windows(records, self.node.window)
        accepted = in_open_windows(placed, self.node.window)
        dropped = (batch.height - records.height) + (placed.height - accepted.height)
        return _Arrived(accepted.drop(STREAM_TIME), dropped, records[ROW].to_numpy(), records[STREAM_TIME].to_numpy())

    def _partials(self, batch: Batch, store: Store) -> _Arrived:
        """Return the partial aggregates of a batch in the open windows, by the stream time before their run."""
        rows = batch.frame.with_row_index(ROW).cast({ROW: pl.Int64})
        times = np.maximum.accumulate(np.append(store.stream_time_ms, rows[TIMESTAMP].to_numpy()))
        runs = rows[RUN].to_numpy()
        # The largest time before a run's first row is the stream time before the run.
        before = times[np.searchsorted(runs, runs, side="left")]
        accepted = in_open_windows(rows.with_columns(pl.Series(STREAM_TIME, before)), self.node.window)
        dropped = int(rows[RECORDS].sum()) - int(accepted[RECORDS].sum())
        lifted = accepted.select(*self.lifting.state_columns, ROW)
        return _Arrived(lifted, dropped, rows[ROW].to_numpy(), times[1:])

    def _fold_every(self, lifted: pl.DataFrame) -> pl.DataFrame:
        """Return one row per record: the fold of its group up to this record."""
        group, accumulators = self.lifting.group, self.lifting.accumulators
        check_decimals(lifted, group, accumulators)
        running = {each.name: each.fold.running(pl.col(each.name)).over(group) for each in accumulators}
        running[TIMESTAMP] = pl.col(TIMESTAMP).cum_max().over(group)
        folded = lifted.with_columns(**running)
        if self.node.sends_old:
            before = {_old(each.name): pl.col(each.name).shift(1).over(group) for each in accumulators}
            had = pl.col(ROW).shift(1).over(group).is_not_null().alias(_HAD)
            folded = folded.with_columns(had, **before)
        return folded.filter(pl.col(ROW) != _STATE_ROW)

    def _results(self, folded: pl.DataFrame) -> pl.DataFrame:
        results = [aggregate.result.alias(aggregate.name) for aggregate in self.lifting.accumulated]
        columns = folded.select(*self.operator.given.key_columns, *results, TIMESTAMP)
        window = self.node.window
        if window is None:
            return columns
        windows = window_columns(folded[WINDOW].to_numpy(), window.size_ms)
        return columns.with_columns(windows).select(*self.operator.result.names, TIMESTAMP)


def _old(name: str) -> str:
    return f"__old.{name}"
