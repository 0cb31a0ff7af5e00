"""Partial aggregates: records folded where they are read.

So fewer rows enter the JVM. A *run* is a set of records that are read together: consecutive records of one partition.
The rows of a run are its records folded by key and window. Each row has the number of its records (``RECORDS``) and the
number of its run (``RUN``). The aggregation after it gives the same result as without, record for record:

* a record is late because of earlier records in its run, which this step sees, or because of records before the run.
  The latter holds for all records of the run in that window, so the aggregation drops the row;
* the record with the largest time of a run is never dropped here. So the largest time of the run's rows is that of the
  run, and stream time advances as before;
* a row has the position of its last record.

Only folds that can be split take part. Doubles must be added in record order, so they do not.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Final

import polars as pl

from millrace_streams.graph import PartialAggregateNode
from millrace_streams.steps.batch import TIMESTAMP, Batch
from millrace_streams.steps.flow import ROOT, Inputs, Output
from millrace_streams.steps.lifting import ROW, Lifting
from millrace_streams.steps.operator import State, StatelessStep
from millrace_streams.steps.window_assignment import STREAM_TIME, in_open_windows, in_windows

RECORDS: Final = "__records"
RUN: Final = "__run"
_SAMPLE_ROWS: Final = 32_768
_GROUPS_SHARE_MAX: Final = 0.5
"""With a larger share of groups in a sample, the grouping costs more than it saves."""


@dataclass(frozen=True)
class PartialAggregateStep(StatelessStep):
    """Step of one ``PartialAggregateNode``."""

    @property
    def node(self) -> PartialAggregateNode:
        """The node."""
        node = self.operator.node
        assert isinstance(node, PartialAggregateNode)
        return node

    @cached_property
    def lifting(self) -> Lifting:
        """Conversion of records to rows."""
        given = self.operator.given
        return Lifting(self.node.name, self.node.aggregates, self.node.window, given.schema, given.key)

    def run(self, inputs: Inputs, state: State) -> Output:
        """Fold the records of a run."""
        lifting, batch = self.lifting, inputs.batch
        records = lifting.records(batch, self.operator.given)
        timed = records.with_columns(pl.col(TIMESTAMP).cum_max().alias(STREAM_TIME))
        placed = in_windows(timed, self.node.window)
        lifted = in_open_windows(placed, self.node.window).drop(STREAM_TIME)
        rows = self._folded(lifted)
        run = int(inputs.marks[0, ROOT]) if len(inputs.marks) else 0
        dropped = (batch.height - records.height) + (placed.height - lifted.height)
        result = rows.with_columns(pl.lit(run, pl.Int64).alias(RUN)).select(*self.operator.result.names, TIMESTAMP)
        return Output(Batch.of_frame(self.operator.result, result), rows[ROW].to_numpy(), dropped)

    def _folded(self, lifted: pl.DataFrame) -> pl.DataFrame:
        sample = lifted.head(_SAMPLE_ROWS).select(self.lifting.group)
        if sample.height == _SAMPLE_ROWS and sample.n_unique() > _GROUPS_SHARE_MAX * _SAMPLE_ROWS:
            return lifted.with_columns(pl.lit(1, pl.Int64).alias(RECORDS))
        return self.lifting.fold(lifted, pl.len().cast(pl.Int64).alias(RECORDS))
