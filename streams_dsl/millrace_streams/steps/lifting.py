"""Lifting of records to accumulators, and folding by group.

The relevant records of a batch are selected here all at once. Whole batches and parts of one are folded by the same
rules.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Final

import numpy as np
import polars as pl
import pyarrow as pa

from millrace_streams.aggregates import Aggregate
from millrace_streams.frames.evaluation import polars_schema
from millrace_streams.layout import Layout
from millrace_streams.steps.accumulators import (
    DECIMAL_SUM,
    AccumulatedAggregate,
    Accumulator,
    accumulate,
    check_decimals,
)
from millrace_streams.steps.batch import TIMESTAMP, Batch
from millrace_streams.steps.groups import counts
from millrace_streams.steps.window_assignment import WINDOW
from millrace_streams.windows import TimeWindows

ROW: Final = "__row"
MEMBER: Final = "__member"
_COUNTS: Final = "__counts"


@dataclass(frozen=True)
class Lifting:
    """Conversion of records to rows with accumulators.

    ``schema`` has the columns of the records. A row has a key, a window, the accumulators, a time and a row number.
    """

    node: str
    aggregates: tuple[tuple[str, Aggregate], ...]
    window: TimeWindows | None
    schema: pa.Schema
    key: tuple[str, ...]

    @cached_property
    def accumulated(self) -> tuple[AccumulatedAggregate, ...]:
        """The aggregates as accumulators."""
        return accumulate(self.aggregates, self.schema, self.node)

    @cached_property
    def accumulators(self) -> tuple[Accumulator, ...]:
        """All accumulators."""
        return tuple(accumulator for aggregate in self.accumulated for accumulator in aggregate.accumulators)

    @cached_property
    def sequential(self) -> list[Accumulator]:
        """Accumulators whose values must be added in record order."""
        return [accumulator for accumulator in self.accumulators if accumulator.fold.whole is None]

    @cached_property
    def is_splittable(self) -> bool:
        """True if parts of a batch can be folded before the whole, so that records need not be added in order.

        A sum of decimals may have too many digits. Then only the record that causes this may fail, and not its part.
        """
        return all(each.fold.whole is not None and each.fold is not DECIMAL_SUM for each in self.accumulators)

    @cached_property
    def group(self) -> list[str]:
        """Columns by which rows are folded."""
        return [*self.key, WINDOW] if self.window is not None else list(self.key)

    @cached_property
    def state_columns(self) -> dict[str, pl.DataType]:
        """Columns of a folded row: key, window's start in ms, accumulators, largest time."""
        types = polars_schema(self.schema)
        columns: dict[str, pl.DataType] = {name: types[name] for name in self.key}
        if self.window is not None:
            columns[WINDOW] = pl.Int64()
        columns |= {accumulator.name: accumulator.data_type for accumulator in self.accumulators}
        return columns | {TIMESTAMP: pl.Int64()}

    def records(self, batch: Batch, given: Layout) -> pl.DataFrame:
        """Return the relevant records: key, lifted accumulators, time and row. Null values are relevant only in
        windows.
        """
        frame = batch.frame
        there = counts(given, frame.columns, needs_value=self.window is None)
        records = frame.select(
            *self.key,
            *(accumulator.lift.alias(accumulator.name) for accumulator in self.accumulators),
            TIMESTAMP,
            pl.int_range(pl.len(), dtype=pl.Int64).alias(ROW),
            there.alias(_COUNTS),
        )
        return (records if records[_COUNTS].all() else records.filter(_COUNTS)).drop(_COUNTS)

    def fold(self, lifted: pl.DataFrame, *further: pl.Expr) -> pl.DataFrame:
        """Return one folded row per group, with the ``further`` folds, sorted by last record and window.

        Raises ``SumTooLargeError``.
        """
        check_decimals(lifted, self.group, self.accumulators)
        folds = [each.fold.whole(pl.col(each.name)) for each in self.accumulators if each.fold.whole is not None]
        folds += [pl.col(TIMESTAMP).max(), pl.col(ROW).last(), *further]
        if self.sequential:
            lifted = lifted.with_row_index(MEMBER)
            folds.append(pl.col(MEMBER))
        folded = lifted.group_by(self.group, maintain_order=True).agg(folds)
        if self.sequential:
            members = folded[MEMBER].explode().to_numpy()
            lengths = folded[MEMBER].list.len().to_numpy()
            groups = np.repeat(np.arange(len(lengths)), lengths)
            # bincount adds the weights one after the other, in the given order.
            sums = {
                each.name: np.bincount(groups, weights=lifted[each.name].to_numpy()[members], minlength=len(lengths))
                for each in self.sequential
            }
            folded = folded.with_columns(**{name: pl.Series(values) for name, values in sums.items()})
        return folded.sort(ROW, *self.group[len(self.key) :])
