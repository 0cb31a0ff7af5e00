"""Changes by key: the latest change of each key in a micro-batch.

The latest change of a key is the one with the largest offset; earlier changes of the batch are ignored. Offsets order
the records of one partition, and a producer sends a key to one partition. If a key comes from several partitions, the
caller must give the order (``order_by``).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from millrace.errors import UsageError
from pyspark_millrace.columns import Metadata
from pyspark_millrace.delta.merging import KeyedTable
from pyspark_millrace.delta.transactions import quoted

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

DELETED: Final = "__deleted"
"""The column of ``latest`` that is true for keys to delete."""
_METADATA: Final = frozenset(each.value for each in Metadata)
_PLACES: Final = {
    Metadata.OFFSET.value: (Metadata.TOPIC.value, Metadata.PARTITION.value),
    "offset": ("topic", "partition"),
}
"""By column of offsets: the columns of topic and partition within which an offset is unique.

The first entry has the names of the metadata columns, the second those of an opaque topic.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangeRules:
    """Rules by which rows become changes of a table.

    ``key``: the columns that identify a row of the table. ``delete_when``: a SQL condition that is true for a change
    that deletes; by default the column ``__tombstone``, if there is one. ``order_by``: the columns whose largest values
    mark the latest change; by default the offset. ``guard``: a column of the table; a change is skipped unless its
    value is larger than that of the table's row, or that is null. ``drop``: columns that are not written; metadata
    columns of reading are never written. ``merge_schema``: whether columns that the table lacks are added to it.
    """

    key: tuple[str, ...]
    delete_when: str | None = None
    order_by: tuple[str, ...] = ()
    guard: str | None = None
    drop: tuple[str, ...] = ()
    merge_schema: bool = False

    def columns_of(self, changes: DataFrame) -> list[str]:
        """Return the columns to write. Raises ``UsageError`` if ``key`` or ``guard`` names none of them."""
        columns = [name for name in changes.columns if name not in _METADATA and name not in self.drop]
        for name in (*self.key, *([self.guard] if self.guard else [])):
            if name not in columns:
                raise UsageError(
                    f"column {name} is not among the written columns ({', '.join(columns)}): correct the key"
                )
        return columns

    def _order(self, changes: DataFrame) -> tuple[str, ...]:
        given = self.order_by or tuple(name for name in _PLACES if name in changes.columns)[:1]
        if not given:
            raise UsageError(
                "the latest change of a key is unknown: read the column __offset as well (option columns), or name "
                "the columns that order the changes (order_by)"
            )
        for name in given:
            if name not in changes.columns:
                raise UsageError(f"order_by: there is no column {name} among {', '.join(changes.columns)}")
        return given

    def _deleted(self, changes: DataFrame) -> Column:
        from pyspark.sql import functions as F  # noqa: N812

        if self.delete_when is not None:
            return F.coalesce(F.expr(self.delete_when), F.lit(False))
        if Metadata.TOMBSTONE.value in changes.columns:
            return F.coalesce(F.col(Metadata.TOMBSTONE.value), F.lit(False))
        return F.lit(False)

    def latest(self, changes: DataFrame) -> DataFrame:
        """Return the latest change of each key: the columns to write, and ``DELETED``.

        If offsets give the order, a key in several partitions is an error when the rows are computed.
        """
        from pyspark.sql import functions as F  # noqa: N812

        columns, order = self.columns_of(changes), self._order(changes)
        row = F.struct(*(F.col(quoted(name)) for name in columns), self._deleted(changes).alias(DELETED))
        newest = F.max_by(row, F.struct(*(F.col(quoted(name)) for name in order))).alias("row")
        of_offset = () if self.order_by else _PLACES[order[0]]
        places = [F.col(name).cast("string") for name in of_offset if name in changes.columns]
        place = F.concat_ws("-", *places) if places else F.lit("")
        keys = [F.col(quoted(name)).alias(f"key{number}") for number, name in enumerate(self.key)]
        found = changes.groupBy(*keys).agg(newest, F.min(place).alias("first"), F.max(place).alias("last"))
        if places:
            found = found.where(_is_of_one_partition(self.key))
        return found.select("row.*")

    def table(self, path: str, partition_by: Sequence[str] = ()) -> KeyedTable:
        """Return the table at ``path`` for these rules."""
        return KeyedTable(
            path=path,
            key=self.key,
            deleted=DELETED,
            guard=self.guard,
            merge_schema=self.merge_schema,
            partition_by=tuple(partition_by),
        )


def _is_of_one_partition(key: Sequence[str]) -> Column:
    """Return a condition that is true, or fails with an error that names the partitions."""
    from pyspark.sql import functions as F  # noqa: N812

    problem = F.concat(
        F.lit(f"changes of one key ({', '.join(key)}) come from several partitions, "),
        F.col("first"),
        F.lit(" and "),
        F.col("last"),
        F.lit(": their offsets do not order them; give order_by"),
    )
    return F.when(F.col("first") == F.col("last"), True).otherwise(F.raise_error(problem).cast("boolean"))
