"""Row filter of a query, for tasks and planning."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from pyspark_millrace.columns import Metadata, TopicColumn
from pyspark_millrace.filters.bounds import NO_LIMITS, Bounds, ValueRange, can_match, exactly, limits_of
from pyspark_millrace.filters.condition import Condition, leaves

if TYPE_CHECKING:
    import pyarrow as pa

    from millrace.records import BatchHeader, BatchStatistics, ColumnStatistics, Wanted
    from pyspark_millrace.partition_key import PartitionKey

_MICROSECONDS_PER_MS: Final = 1000
_OPAQUE_COLUMNS: Final = ("key", "value")


@dataclass(frozen=True, slots=True)
class RowFilter:
    """A bound condition and its columns; picklable."""

    expression: Condition
    columns: tuple[TopicColumn, ...]

    def arrow_types(self) -> tuple[pa.DataType, ...]:
        """Return the types in which the columns are compared."""
        from pyspark.sql.pandas.types import to_arrow_type

        return tuple(to_arrow_type(column.type, timezone="UTC") for column in self.columns)

    def rows_matching(self, columns: Mapping[str, pa.Array], rows: int) -> pa.BooleanArray:
        """Return true for matching rows; null counts as no match."""
        from pyspark_millrace.filters.evaluation import rows_matching

        return rows_matching(self.expression, columns.__getitem__, rows)

    def covers(self, key: PartitionKey, start: int, end: int) -> bool:
        """Return whether a record within these offsets of a partition can match."""
        return can_match(self.expression, self._known(key, Bounds(start, end - 1, may_be_null=False)))

    def offset_limits(self, key: PartitionKey) -> ValueRange:
        """Return the offsets of a partition that can match."""
        return self._limits(Metadata.OFFSET, key)

    def time_limits_ms(self, key: PartitionKey) -> ValueRange:
        """Return the times of a partition that can match, in ms."""
        low, high = self._limits(Metadata.TIMESTAMP, key)
        return (
            None if low is None else -(-low // _MICROSECONDS_PER_MS),
            None if high is None else high // _MICROSECONDS_PER_MS,
        )

    def _limits(self, kind: Metadata, key: PartitionKey) -> ValueRange:
        # An opaque topic has its metadata under two names.
        found = [
            limits_of(self.expression, column.name, self._known(key))
            for column in self.columns
            if column.source is kind
        ]
        lows = [low for low, _ in found if low is not None]
        highs = [high for _, high in found if high is not None]
        return (max(lows, default=None), min(highs, default=None)) if found else NO_LIMITS

    def _known(self, key: PartitionKey, offsets: Bounds | None = None) -> Callable[[str], Bounds | None]:
        metadata: dict[Metadata, Bounds | None] = {
            Metadata.TOPIC: exactly(key.topic.encode()),
            Metadata.PARTITION: exactly(key.partition),
            Metadata.OFFSET: offsets,
        }
        known = {
            column.name: metadata.get(column.source) for column in self.columns if isinstance(column.source, Metadata)
        }
        return known.get

    def wanted(
        self, key: PartitionKey, schema_of: Callable[[int], pa.Schema], skipped: Callable[[BatchHeader], None]
    ) -> Wanted:
        """Return a predicate for batches that can hold matching records; ``skipped`` is called for each other batch."""
        places: dict[int, Mapping[str, int]] = {}

        def wanted(header: BatchHeader, statistics: BatchStatistics | None) -> bool:
            known = self._known(key, Bounds(header.base_offset, header.last_offset, may_be_null=False))
            times = Bounds(*_times_us(header, statistics), may_be_null=False)
            if statistics is not None and statistics.schema_id not in places:
                places[statistics.schema_id] = self._places(statistics.schema_id, schema_of)

            def bounds_of(name: str) -> Bounds | None:
                if name in time_columns:
                    return times
                if statistics is None or (place := places[statistics.schema_id].get(name)) is None:
                    return known(name)
                column = statistics.columns.get(place)
                return None if column is None else _bounds(column)

            if can_match(self.expression, bounds_of):
                return True
            skipped(header)
            return False

        time_columns = {column.name for column in self.columns if column.source is Metadata.TIMESTAMP}
        return wanted

    def _places(self, schema_id: int, schema_of: Callable[[int], pa.Schema]) -> Mapping[str, int]:
        """Return the columns' positions in a schema version, for columns whose statistics still have the same
        meaning.
        """
        types = dict(zip((column.name for column in self.columns), self.arrow_types(), strict=True))
        sources = [column for column in self.columns if isinstance(column.source, str)]
        if schema_id == 0:
            return {column.name: _OPAQUE_COLUMNS.index(str(column.source)) for column in sources}
        schema = schema_of(schema_id)
        return {
            column.name: place
            for column in sources
            if (place := schema.get_field_index(str(column.source))) >= 0
            and _is_comparable(schema.field(place).type, types[column.name])
        }


def row_filter_of(expression: Condition | None, available: Mapping[str, TopicColumn]) -> RowFilter | None:
    """Return the row filter of a bound condition, None without a condition."""
    if expression is None:
        return None
    names = dict.fromkeys(leaf.column for leaf in leaves(expression))
    return RowFilter(expression, tuple(available[name] for name in names))


def _bounds(column: ColumnStatistics) -> Bounds:
    low, high = column.bounds or (None, None)
    return Bounds(low, high, column.nulls_max > 0, not column.only_nulls, column.is_prefix)


def _times_us(header: BatchHeader, statistics: BatchStatistics | None) -> tuple[int | None, int | None]:
    """Return the times of a batch in microseconds.

    Without statistics, the header has only the latest one. With LogAppendTime it is the time of every record.
    """
    if statistics is not None and statistics.timestamps_ms is not None:
        low, high = statistics.timestamps_ms
        return low * _MICROSECONDS_PER_MS, high * _MICROSECONDS_PER_MS
    greatest = header.max_timestamp * _MICROSECONDS_PER_MS
    return (greatest if header.timestamp_type else None), greatest


def _is_comparable(stored: Any, now: Any) -> bool:
    import pyarrow.types as pat

    return bool(
        stored == now
        or (pat.is_signed_integer(stored) and pat.is_signed_integer(now))
        or (pat.is_floating(stored) and pat.is_floating(now))
    )
