"""Task side of a direct ingest: record batches written to Parquet files.

The driver receives a row that describes each file. A file belongs to the table only after the driver commits it. Every
attempt of a task writes files under unique names. A failed attempt deletes its files if possible. No reader sees the
files that it cannot delete, and ``VACUUM`` removes them.

Memory: one row group at a time, of up to ``ROW_GROUP_BYTES`` in Arrow, and its encoded form.
"""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from millrace.errors import SchemaMismatchError
from pyspark_millrace.delta.partition_values import Values, directory_of, split_by_values
from pyspark_millrace.delta.statistics import FloatBounds, IndexedColumns, parquet_statistics, statistics_json
from pyspark_millrace.transform import Transform

_log = logging.getLogger(__name__)

ROW_GROUP_BYTES: Final = 128 * 2**20
ROW_GROUP_ROWS: Final = 2**20
_OPEN_FILES_MAX: Final = 200

FILE_SCHEMA: Final = pa.schema(
    [
        ("path", pa.string()),
        ("partition_values", pa.map_(pa.string(), pa.string())),
        ("size_bytes", pa.int64()),
        ("modified_ms", pa.int64()),
        ("rows", pa.int64()),
        ("statistics", pa.string()),
    ]
)
FILE_DDL: Final = (
    "path STRING, partition_values MAP<STRING, STRING>, size_bytes BIGINT, modified_ms BIGINT, rows BIGINT, "
    "statistics STRING"
)


@dataclass(frozen=True, slots=True)
class DataFiles:
    """A transformation (option ``transform``) that writes the batches to files below ``directory``.

    ``schema`` is the schema of the rows in the files. ``before`` is a transformation that is applied to the batches
    first.
    """

    directory: str
    schema: pa.Schema
    partition_by: tuple[str, ...] = ()
    indexed: IndexedColumns = field(default_factory=IndexedColumns)
    compression: str = "snappy"
    before: Transform | None = None

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Write all batches, then yield one row of ``FILE_SCHEMA`` for each file."""
        open_files: dict[str, _DataFile] = {}
        written: list[_DataFile] = []
        try:
            for table in _row_groups(self.before(batches) if self.before else batches, self.schema):
                for values, rows in split_by_values(table, self.partition_by):
                    self._file(directory_of(values), values, open_files, written).write(rows)
            described = [file.close() for file in written]
        except BaseException:
            for file in written:
                file.discard()
            raise
        if described:
            yield pa.RecordBatch.from_pylist(described, schema=FILE_SCHEMA)

    def _file(
        self, folder: str, values: Values, open_files: dict[str, _DataFile], written: list[_DataFile]
    ) -> _DataFile:
        key = repr(values)
        if key not in open_files:
            if len(open_files) >= _OPEN_FILES_MAX:
                open_files.pop(next(iter(open_files))).close()
            stored = pa.schema([each for each in self.schema if each.name not in self.partition_by])
            path = f"{folder}part-{uuid.uuid4()}.{self.compression}.parquet"
            open_files[key] = _DataFile(Path(self.directory), path, values, stored, self.indexed, self.compression)
            written.append(open_files[key])
        return open_files[key]


@dataclass(slots=True)
class _DataFile:
    """Data file that is being written.

    ``close`` finishes the file and may be called again.
    """

    directory: Path
    path: str
    values: Values
    schema: pa.Schema
    indexed: IndexedColumns
    compression: str
    _writer: pq.ParquetWriter | None = None
    _floats: dict[str, FloatBounds] = field(default_factory=dict)
    _footer: list[pq.FileMetaData] = field(default_factory=list)
    _described: dict[str, Any] | None = None

    def write(self, rows: pa.Table) -> None:
        """Write a row group."""
        if self._writer is None:
            self._location.parent.mkdir(parents=True, exist_ok=True)
            self._writer = pq.ParquetWriter(
                self._location,
                self.schema,
                compression=self.compression,
                store_schema=False,
                write_statistics=parquet_statistics(self.schema),
                metadata_collector=self._footer,
            )
            self._floats = FloatBounds.of(self.schema)
        for name, bounds in self._floats.items():
            bounds.add(rows.column(name))
        self._writer.write_table(rows, row_group_size=max(rows.num_rows, 1))

    def close(self) -> dict[str, Any]:
        """Finish the file and return its row of ``FILE_SCHEMA``."""
        if self._described is None:
            assert self._writer is not None, "the first rows of a file open it"
            self._writer.close()
            footer = self._footer[0]
            self._described = {
                "path": self.path,
                "partition_values": list(self.values.items()),
                "size_bytes": self._location.stat().st_size,
                "modified_ms": time.time_ns() // 1_000_000,
                "rows": footer.num_rows,
                "statistics": statistics_json(footer, self.schema, self.indexed, self._floats),
            }
        return self._described

    def discard(self) -> None:
        """Delete the file. A file that cannot be deleted is only logged, because no reader sees it."""
        try:
            if self._writer is not None:
                self._writer.close()
            self._location.unlink(missing_ok=True)
        except (OSError, pa.ArrowException) as error:
            _log.warning("%s could not be deleted, so VACUUM has to delete it: %s", self._location, error)

    @property
    def _location(self) -> Path:
        return self.directory / self.path


def _row_groups(batches: Iterator[pa.RecordBatch], schema: pa.Schema) -> Iterator[pa.Table]:
    """Combine batches to row groups."""
    pending: list[pa.RecordBatch] = []
    rows = size_bytes = 0
    for batch in batches:
        batch = _fitting(batch, schema)
        if pending and (rows + batch.num_rows > ROW_GROUP_ROWS or size_bytes + batch.nbytes > ROW_GROUP_BYTES):
            yield pa.Table.from_batches(pending, schema)
            pending, rows, size_bytes = [], 0, 0
        if batch.num_rows:
            pending.append(batch)
        rows, size_bytes = rows + batch.num_rows, size_bytes + batch.nbytes
    if pending:
        yield pa.Table.from_batches(pending, schema)


def _fitting(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Return the batch in the table's types. Raises ``SchemaMismatchError`` if a type cannot hold the values
    exactly.
    """
    if batch.schema.equals(schema):
        return batch
    try:
        if batch.schema.names == schema.names:
            return batch.cast(schema)
        problem = "other columns"
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, ValueError) as error:
        problem = str(error)
    raise SchemaMismatchError(
        f"batches of ({_columns(batch.schema)}) came for a table of ({_columns(schema)}): {problem}: start the "
        "ingest again, so that it reads the topic's newest schema; or correct the result of its transform"
    )


def _columns(schema: pa.Schema) -> str:
    return ", ".join(f"{each.name} {each.type}{'' if each.nullable else ' not null'}" for each in schema)
