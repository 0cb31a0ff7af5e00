"""Task side of a direct merge.

A task rewrites files of the table with the changes. A task gets some files of the table. It reads their key columns
first. Files without a key of the batch stay as they are, and the task reads no more of them. The other files are
rewritten together into new files. Updated rows keep their place, and deleted rows are left out. The new files belong to
the table only after the driver commits them (``data_files``).

Memory: the changes, the key columns of one file, and one row group of the new file.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from millrace.errors import SchemaMismatchError
from pyspark_millrace.delta.data_files import DataFiles
from pyspark_millrace.delta.statistics import IndexedColumns

Places = np.ndarray[Any, np.dtype[np.int64]]
"""For each row of a file the number of the change with the same key; -1 if there is none."""

OUTCOME_SCHEMA: Final = pa.schema(
    [("removed", pa.list_(pa.string())), ("matched", pa.binary()), ("files", pa.string())]
)
OUTCOME_DDL: Final = "removed ARRAY<STRING>, matched BINARY, files STRING"
_BATCH_ROWS: Final = 2**16


class KeyIndex:
    """Index of distinct keys: the row number of each key. Null is equal to null.

    Several key columns become one number, column by column. It combines the number of the preceding columns' values
    with the number of the next column's value. After each column the combinations are renumbered, so that the numbers
    stay small.
    """

    def __init__(self, keys: pa.Table) -> None:
        numbers = np.zeros(keys.num_rows, np.int64)
        self._columns: list[tuple[pa.Array, Places]] = []
        for column in keys.columns:
            values = column.unique()
            known, numbers = np.unique(numbers * len(values) + _numbers(column, values), return_inverse=True)
            self._columns.append((values, known))
        self._place = np.empty(keys.num_rows, np.int64)
        self._place[numbers] = np.arange(keys.num_rows)

    def places(self, rows: Sequence[pa.ChunkedArray]) -> Places:
        """Return the row numbers of the keys in ``rows``, -1 for keys that the index lacks.

        ``rows`` has the columns of the keys, in the same order.
        """
        numbers = np.zeros(len(rows[0]), np.int64)
        is_known = np.full(len(rows[0]), len(self._place) > 0)
        if not is_known.any():
            return np.full(len(rows[0]), -1)
        for (values, known), column in zip(self._columns, rows, strict=True):
            of_column = _numbers(column, values)
            numbers = numbers * len(values) + of_column
            found = np.minimum(np.searchsorted(known, numbers), len(known) - 1)
            is_known &= (of_column >= 0) & (known[found] == numbers)
            numbers = np.where(is_known, found, 0)
        return np.where(is_known, self._place[numbers], -1)


def _numbers(column: pa.ChunkedArray, values: pa.Array) -> Places:
    found: Places = pc.fill_null(pc.index_in(column, value_set=values), -1).to_numpy().astype(np.int64)
    return found


def last_of_each_key(rows: pa.Table, key: Sequence[str]) -> pa.Table:
    """Return the rows without those that a later row with the same key follows."""
    keys = rows.select(key)
    return rows.filter(pa.array(KeyIndex(keys).places(keys.columns) == np.arange(rows.num_rows)))


@dataclass(frozen=True, slots=True)
class Changes:
    """Latest change of each key.

    ``deleted`` marks the ``rows`` that delete. A change is skipped unless its value of ``guard`` is larger than the
    value in the table's row.
    """

    rows: pa.Table
    deleted: np.ndarray[Any, np.dtype[np.bool_]]
    key: tuple[str, ...]
    guard: str | None = None

    @classmethod
    def of(cls, table: pa.Table, deleted: str | None, key: Sequence[str], guard: str | None) -> Changes:
        """Create the changes from a table with a column that marks deletions (``deleted``). Its keys are unique."""
        if deleted is None:
            return cls(table.combine_chunks(), np.zeros(table.num_rows, np.bool_), tuple(key), guard)
        marks = table.column(deleted).to_numpy().astype(np.bool_)
        return cls(table.drop_columns([deleted]).combine_chunks(), marks, tuple(key), guard)

    def inserted(self, matched: np.ndarray[Any, np.dtype[np.bool_]]) -> pa.Table:
        """Return the rows to insert if ``matched`` marks the changes whose keys the table holds."""
        return self.rows.filter(pa.array(~matched & ~self.deleted))


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """Result of a task.

    ``removed`` are the files to remove. ``matched`` marks the changes whose keys were found. ``files`` are the files to
    add, as rows of ``data_files.FILE_SCHEMA``.
    """

    removed: tuple[str, ...]
    matched: np.ndarray[Any, np.dtype[np.bool_]]
    files: tuple[Mapping[str, Any], ...]

    @classmethod
    def of(cls, row: Mapping[str, Any], changes: int) -> Outcome:
        """Read a row of ``OUTCOME_SCHEMA``."""
        matched = np.unpackbits(np.frombuffer(row["matched"], np.uint8), count=changes).astype(np.bool_)
        return cls(removed=tuple(row["removed"]), matched=matched, files=tuple(json.loads(row["files"])))

    def packed(self) -> pa.RecordBatch:
        """Return the result as a row of ``OUTCOME_SCHEMA``."""
        matched = np.packbits(self.matched).tobytes()
        row = {"removed": list(self.removed), "matched": matched, "files": json.dumps(self.files)}
        return pa.RecordBatch.from_pylist([row], schema=OUTCOME_SCHEMA)


@dataclass(frozen=True, slots=True)
class Rewriting:
    """Rewriting of a table's files with ``changes``.

    ``directory`` is the table's directory, and ``schema`` its schema.
    """

    directory: str
    schema: pa.Schema
    indexed: IndexedColumns
    changes: Changes

    def rewritten(self, paths: Sequence[str]) -> Outcome:
        """Rewrite those files that hold a key of the changes.

        Raises ``SchemaMismatchError`` for a file whose columns do not fit the table's.
        """
        index = KeyIndex(self.changes.rows.select(self.changes.key))
        matched = np.zeros(self.changes.rows.num_rows, np.bool_)
        removed: list[str] = []

        def rows() -> Iterator[pa.RecordBatch]:
            for path in paths:
                with pq.ParquetFile(Path(self.directory, path), coerce_int96_timestamp_unit="us") as file:
                    places = self._places(file, path, index, matched)
                    if (places >= 0).any():
                        removed.append(path)
                        yield from self._new_rows(file, path, places)

        files = tuple(self._written(rows()))  # reads all files first, which fills the other fields
        return Outcome(removed=tuple(removed), matched=matched, files=files)

    def inserted(self, matched: np.ndarray[Any, np.dtype[np.bool_]]) -> list[Mapping[str, Any]]:
        """Write the rows whose keys no file holds. Returns rows of ``data_files.FILE_SCHEMA``."""
        new = self.changes.inserted(matched)
        columns = [
            new.column(field.name).cast(field.type)
            if field.name in new.column_names
            else pa.nulls(new.num_rows, field.type)
            for field in self.schema
        ]
        return self._written(iter(pa.table(columns, schema=self.schema).to_batches()))

    def _written(self, batches: Iterator[pa.RecordBatch]) -> list[Mapping[str, Any]]:
        """Write rows to files. Returns rows of ``data_files.FILE_SCHEMA``."""
        described = DataFiles(self.directory, self.schema, (), self.indexed)(batches)
        return [row | {"partition_values": {}} for batch in described for row in batch.to_pylist()]

    def _places(
        self, file: pq.ParquetFile, path: str, index: KeyIndex, matched: np.ndarray[Any, np.dtype[np.bool_]]
    ) -> Places:
        """Return the changes that apply to the rows of a file.

        Marks all changes whose keys the file holds in ``matched``, also those that ``guard`` skips.
        """
        changes = self.changes
        names = [*changes.key, *([changes.guard] if changes.guard else [])]
        rows = self._fitting(file.read(columns=_stored(file, names)), names, path)
        places = index.places([rows.column(name) for name in changes.key])
        matched[places[places >= 0]] = True
        if changes.guard is None:
            return places
        found = np.flatnonzero(places >= 0)
        kept = rows.column(changes.guard).take(pa.array(found))
        new = changes.rows.column(changes.guard).cast(kept.type).take(pa.array(places[found]))
        newer = pc.fill_null(pc.or_kleene(pc.is_null(kept), pc.greater(new, kept)), False)
        places[found[~newer.to_numpy().astype(np.bool_)]] = -1
        return places

    def _new_rows(self, file: pq.ParquetFile, path: str, places: Places) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a file after the changes, in their order."""
        changes, first = self.changes, 0
        for batch in file.iter_batches(_BATCH_ROWS, columns=_stored(file, self.schema.names)):
            rows = self._fitting(pa.Table.from_batches([batch]), self.schema.names, path)
            here = places[first : first + rows.num_rows]
            first += rows.num_rows
            is_changed = here >= 0
            if is_changed.any():
                is_deleted = is_changed & changes.deleted[here]
                is_updated = is_changed & ~is_deleted
                new = changes.rows.take(pa.array(here[is_updated]))
                old_places = np.arange(rows.num_rows)
                new_places = np.where(is_updated, rows.num_rows - 1 + np.cumsum(is_updated), old_places)
                old, updated = (pa.array(each[~is_deleted]) for each in (old_places, new_places))
                rows = pa.table(
                    [
                        _joined(rows.column(name), new.column(name)).take(updated)
                        if name in new.column_names
                        else rows.column(name).take(old)
                        for name in self.schema.names
                    ],
                    schema=self.schema,
                )
            yield from rows.combine_chunks().to_batches()

    def _fitting(self, rows: pa.Table, names: Sequence[str], path: str) -> pa.Table:
        """Return columns of a file in the table's types. Columns that the file lacks are null."""
        try:
            columns = [
                rows.column(name).cast(self.schema.field(name).type)
                if name in rows.column_names
                else pa.chunked_array([pa.nulls(rows.num_rows, self.schema.field(name).type)])
                for name in names
            ]
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
            raise SchemaMismatchError(
                f"{self.directory}: file {path} does not hold the table's columns: {error}: restore the table"
            ) from error
        return pa.table(columns, schema=pa.schema([self.schema.field(name) for name in names]))


def _stored(file: pq.ParquetFile, names: Sequence[str]) -> list[str]:
    stored = set(file.schema_arrow.names)
    return [name for name in names if name in stored]


def _joined(old: pa.ChunkedArray, new: pa.ChunkedArray) -> pa.Array:
    return pa.concat_arrays([*old.chunks, *new.cast(old.type).chunks])


def in_tasks(
    rewriting: Rewriting, groups: Sequence[Sequence[str]], batches: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """Rewrite the groups whose numbers are in the column ``id``; for ``mapInArrow``."""
    for batch in batches:
        for number in batch.column("id").to_pylist():
            yield rewriting.rewritten(groups[number]).packed()
