"""Driver side of a direct merge: small batches merged without Spark's MERGE.

The statistics of files say which files may hold a key of the batch. Tasks read these files and rewrite them
(``rewriting``). One commit under the batch's transaction replaces the old files by the new ones. Spark's MERGE does the
same by joins and shuffles, whose tasks cost far more than the rows of a small batch.

Spark merges if a table or batch needs more than that (features of Delta, casts, partitions). The driver's log then
gives the reason.

Invariants:

- ``merge`` commits on top of the version that it has read, or starts again. It commits all changes or none.
- ``merge`` removes files that it wrote only if the table, read after the failure, lacks the transaction.
"""

from __future__ import annotations

import json
import logging
import time
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
from deltalake import CommitProperties, DeltaTable
from deltalake import Transaction as TableTransaction
from deltalake.exceptions import CommitFailedError, TableNotFoundError
from deltalake.transaction import AddAction, RemoveAction

from millrace.errors import EnvironmentProblemError
from pyspark_millrace.delta.rewriting import OUTCOME_DDL, Changes, Outcome, Rewriting, in_tasks
from pyspark_millrace.delta.table import FEATURES_KEPT, indexed_columns, is_local, local_directory
from pyspark_millrace.delta.transactions import MERGED, Transaction

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.types import DataType, StructType

_log = logging.getLogger(__name__)

FILE_BYTES: Final = 128 * 2**20
"""Target size of the files that are rewritten into one file, in bytes."""
DRIVER_BYTES_MAX: Final = 8 * 2**20
"""The driver itself rewrites files of up to this size in total, because a Spark job takes longer."""
_ATTEMPTS_MAX: Final = 10
_FEATURES: Final = FEATURES_KEPT - {"deletionVectors", "v2Checkpoint"}
_PROPERTIES: Final = {
    "delta.checkpointInterval",
    "delta.dataSkippingNumIndexedCols",
    "delta.dataSkippingStatsColumns",
    "delta.deletedFileRetentionDuration",
    "delta.enableExpiredLogCleanup",
    "delta.logRetentionDuration",
    "delta.minReaderVersion",
    "delta.minWriterVersion",
}
"""Table properties with which a direct merge is possible, whatever their values are."""
_OFF: Final = {
    "delta.appendOnly": "false",
    "delta.columnMapping.mode": "none",
    "delta.enableChangeDataFeed": "false",
    "delta.enableDeletionVectors": "false",
}
"""Table properties with which a direct merge is possible if they have these values."""


class DirectMerge:
    """Direct merges into a Delta table.

    The table is on a local or shared file system.
    """

    def __init__(self, table: DeltaTable, directory: Path) -> None:
        self._table = table
        self._directory = directory

    @classmethod
    def open(cls, spark: SparkSession, path: str) -> DirectMerge | None:
        """Open the table at ``path``; ``None`` if there is no table, or this process does not see its file system."""
        if not is_local(spark, path):
            return None
        directory = local_directory(path)
        try:
            return cls(DeltaTable(str(directory)), directory)
        except TableNotFoundError:
            return None

    def merge(self, spark: SparkSession, written: StructType, changes: Changes, transaction: Transaction) -> int | None:
        """Merge changes of the columns ``written`` into the table, once for the transaction.

        Returns the size of the added files in bytes, or ``None`` if Spark must merge. Raises
        ``EnvironmentProblemError`` when every attempt conflicts with a commit of another writer.
        """
        for attempt in range(1, _ATTEMPTS_MAX + 1):
            if (refusal := self._refusal(written, changes)) is not None:
                _log.info("Spark does the merge into %s, because %s", self._directory, refusal)
                return None
            if self._has(transaction):
                return 0
            outcomes = self._rewritten(spark, changes)
            try:
                return self._commit(outcomes, transaction)
            except CommitFailedError as error:
                _log.info("merge into %s, attempt %d: %s", self._directory, attempt, error)
                failure = error
            # Any other error may follow the commit, for example an error of a checkpoint. Then the table has the files,
            # so they are left to a VACUUM.
            self._update()
            if not self._has(transaction):
                self._discard(outcomes)
        raise EnvironmentProblemError(
            f"{self._directory}: other writers committed first {_ATTEMPTS_MAX} times in a row; start the query again"
        ) from failure

    def _has(self, transaction: Transaction) -> bool:
        last = self._table.transaction_version(transaction.application)
        return last is not None and last >= transaction.version

    def _refusal(self, written: StructType, changes: Changes) -> str | None:
        """Return the reason why Spark must merge; ``None`` if a direct merge is possible."""
        if (problem := self._refusal_of_table()) is not None:
            return problem
        there = {field.name: field for field in self._schema}
        for field in written:
            kept = there.get(field.name)
            if kept is None or kept.dataType != field.dataType:
                return f"column {field.name} has another type in the table"
        for name in (*changes.key, *([changes.guard] if changes.guard else [])):
            if there[name].dataType.typeName() in ("float", "double", "boolean"):
                return f"only Spark can compare column {name}"
        for name, kept in there.items():
            is_filled = name in changes.rows.column_names and changes.rows.column(name).null_count == 0
            if not kept.nullable and not is_filled:
                return f"column {name} is NOT NULL in the table but nullable in the written rows"
        return None

    def _rewritten(self, spark: SparkSession, changes: Changes) -> list[Outcome]:
        """Rewrite the files that hold keys of the changes, and write the new rows to further files."""
        from pyspark.sql.pandas.types import to_arrow_schema

        files = self._sizes_of(changes) if changes.rows.num_rows else {}
        # Columns are nullable in the files, as in the files that Spark writes.
        fields = [field.with_nullable(True) for field in to_arrow_schema(self._schema, timezone="UTC")]
        rewriting = Rewriting(str(self._directory), pa.schema(fields), indexed_columns(self._table), changes)
        size_bytes = sum(files.values())
        parallelism = 1 if size_bytes <= DRIVER_BYTES_MAX else spark.sparkContext.defaultParallelism
        groups = grouped(files, parallelism)
        if size_bytes <= DRIVER_BYTES_MAX:
            outcomes = [rewriting.rewritten(group) for group in groups]
        else:
            numbers = spark.range(0, len(groups), 1, len(groups))
            rows = numbers.mapInArrow(partial(in_tasks, rewriting, groups), OUTCOME_DDL).collect()
            outcomes = [Outcome.of(row.asDict(), changes.rows.num_rows) for row in rows]
        matched = np.zeros(changes.rows.num_rows, np.bool_)
        for outcome in outcomes:
            matched |= outcome.matched
        inserted = rewriting.inserted(matched)
        return [*outcomes, Outcome(removed=(), matched=matched, files=tuple(inserted))]

    def _commit(self, outcomes: Sequence[Outcome], transaction: Transaction) -> int:
        now_ms = time.time_ns() // 1_000_000
        sizes = _sizes_by_path(self._files)
        actions: list[AddAction | RemoveAction] = [
            RemoveAction(path=path, data_change=True, deletion_timestamp=now_ms, size=sizes[path], partition_values={})
            for outcome in outcomes
            for path in outcome.removed
        ]
        added = [file for outcome in outcomes for file in outcome.files]
        actions += [
            AddAction(
                path=file["path"],
                size=file["size_bytes"],
                partition_values={},
                modification_time=file["modified_ms"],
                data_change=True,
                stats=file["statistics"],
            )
            for file in added
        ]
        properties = CommitProperties(
            custom_metadata={"isBlindAppend": False, "userMetadata": MERGED},
            app_transactions=[TableTransaction(transaction.application, transaction.version)],
            # A commit of another writer in the meantime may hold the same keys.
            max_commit_retries=0,
        )
        self._table.create_write_transaction(actions, "append", self._table.schema(), [], commit_properties=properties)
        return sum(file["size_bytes"] for file in added)

    def _discard(self, outcomes: Sequence[Outcome]) -> None:
        for outcome in outcomes:
            for file in outcome.files:
                (self._directory / file["path"]).unlink(missing_ok=True)

    def _refusal_of_table(self) -> str | None:
        table, metadata = self._table, self._table.metadata()
        if metadata.partition_columns:
            return "the table is partitioned"
        protocol = table.protocol()
        features = {*(protocol.reader_features or ()), *(protocol.writer_features or ())}
        if unknown := sorted(features - _FEATURES):
            return f"the table has the feature {', '.join(unknown)}"
        for name, value in metadata.configuration.items():
            is_known = not name.startswith("delta.") or name.startswith("delta.feature.") or name in _PROPERTIES
            if not is_known and _OFF.get(name) != value:
                return f"the table has the property {name}={value}"
        for field in self._schema:
            if not is_simple(field.dataType):
                return f"column {field.name} is {field.dataType.simpleString()}"
            if set(field.metadata) - {"comment"}:
                return f"column {field.name} has the properties {', '.join(field.metadata)}"
        paths = self._files.column("path").to_pylist()
        if odd := next((path for path in paths if "%" in path or "/" in path or ":" in path), None):
            return f"the file {odd} is not in the table's directory"
        return None

    @cached_property
    def _schema(self) -> StructType:
        """The columns of the version that was read."""
        from pyspark.sql.types import StructType

        return StructType.fromJson(json.loads(self._table.schema().to_json()))

    @cached_property
    def _files(self) -> pa.Table:
        """The files of the version that was read, with their statistics."""
        return pa.table(self._table.get_add_actions(flatten=True))

    def _update(self) -> None:
        """Read the table's newest version."""
        self._table.update_incremental()
        for name in ("_schema", "_files"):
            vars(self).pop(name, None)

    def _sizes_of(self, changes: Changes) -> dict[str, int]:
        """Return the files that may hold a key of the changes, with their sizes."""
        files = self._files
        may_hold = np.ones(files.num_rows, np.bool_)
        for name in changes.key:
            bounds = [
                files.column(f"{bound}.{name}").to_pylist() if f"{bound}.{name}" in files.column_names else None
                for bound in ("min", "max")
            ]
            if bounds[0] is not None and bounds[1] is not None:
                holds = within(changes.rows.column(name))
                may_hold &= np.array([holds(*pair) for pair in zip(bounds[0], bounds[1], strict=True)], np.bool_)
        return _sizes_by_path(files.select(["path", "size_bytes"]).filter(pa.array(may_hold)))


def _sizes_by_path(files: pa.Table) -> dict[str, int]:
    return dict(zip(files.column("path").to_pylist(), files.column("size_bytes").to_pylist(), strict=True))


def within(keys: pa.ChunkedArray) -> Callable[[Any, Any], bool]:
    """Return a function that says whether a key may lie between a smallest and a largest value.

    A bound of ``None`` is unknown, and any key may lie within it.
    """
    types = pa.types
    if keys.null_count or not (types.is_integer(keys.type) or types.is_string(keys.type) or types.is_date32(keys.type)):
        return lambda least, greatest: True
    ordered: list[Any] = sorted(set(keys.to_pylist()))

    def holds(least: Any, greatest: Any) -> bool:
        if least is None or greatest is None:
            return True
        first = bisect_left(ordered, least)
        return first < len(ordered) and bool(ordered[first] <= greatest)

    return holds


def grouped(files: Mapping[str, int], parallelism: int) -> list[list[str]]:
    """Group files by size; each group becomes one file of about ``FILE_BYTES`` or less, if any of its files changes.

    There are at least as many groups as tasks that run in parallel (``parallelism``), unless there are fewer files.
    """
    count = min(len(files), max(parallelism, -(-sum(files.values()) // FILE_BYTES)))
    groups: list[list[str]] = [[] for _ in range(count)]
    sizes = [0] * count
    for path, size in sorted(files.items(), key=lambda file: (-file[1], file[0])):
        smallest = sizes.index(min(sizes))
        groups[smallest].append(path)
        sizes[smallest] += size
    return groups


def is_simple(data_type: DataType) -> bool:
    """Return whether Arrow and Spark write and compare values of this type alike."""
    from pyspark.sql import types

    simple = (
        types.IntegralType,
        types.FloatType,
        types.DoubleType,
        types.DecimalType,
        types.BooleanType,
        types.BinaryType,
        types.DateType,
        types.TimestampType,
        types.TimestampNTZType,
    )
    # No isinstance, because CHAR, VARCHAR and strings with a collation are subclasses with other rules.
    return isinstance(data_type, simple) or data_type == types.StringType()
