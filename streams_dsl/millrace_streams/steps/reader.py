"""The reader's part of a plan: what happens to records where they are decoded, before they go to their task.

It gives records their event time and runs the stateless operators up to the first stateful one. It keeps no state, so
it may run on any piece of a partition.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import polars as pl

from millrace_streams.errors import UserFunctionError
from millrace_streams.graph import SourceNode
from millrace_streams.steps.records import OFFSET, RESERVED, TIMESTAMP
from millrace_streams.steps.stateless import Operator, run_stateless


@dataclass(frozen=True, slots=True)
class Reader:
    """The source and the operators right after it, ready to run on decoded records."""

    source: SourceNode
    columns: tuple[str, ...]
    operators: Sequence[Operator]

    def run(self, decoded: pl.DataFrame, partition: int) -> pl.DataFrame:
        """Turn decoded records of one partition, in order, into what the task reads.

        ``decoded`` has the source's columns, ``__offset`` and ``__timestamp`` (ms). Raises ``UserFunctionError`` naming
        topic, partition and offset for a record without a valid event time, or when a user's function fails.
        """
        records = self._with_event_time(decoded, partition)
        try:
            for operator in self.operators:
                records = run_stateless(operator, records)
        except UserFunctionError as error:
            raise UserFunctionError(f"{error.message} [topic {self.source.topic}, partition {partition}]") from error
        return records

    def _with_event_time(self, decoded: pl.DataFrame, partition: int) -> pl.DataFrame:
        column = self.source.timestamp or TIMESTAMP
        time = pl.col(column)
        if decoded.schema[column].is_temporal():
            time = time.dt.timestamp("ms")
        records = decoded.select(*self.columns, time.cast(pl.Int64).alias(TIMESTAMP), OFFSET)
        invalid = records.filter(pl.col(TIMESTAMP).is_null() | (pl.col(TIMESTAMP) < 0))
        if invalid.height:
            raise UserFunctionError(
                f"{self.source.name}: {invalid.height} records without a valid event time in {column}, the first at "
                f"offset {invalid[OFFSET][0]} of {self.source.topic}-{partition}: filter them out where they are "
                "produced, or choose another timestamp column"
            )
        return records.select(*self.columns, *RESERVED)
