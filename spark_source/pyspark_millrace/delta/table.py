"""Driver side of a direct ingest into a Delta table.

The table takes each batch once. The query's id and the batch's number identify a batch. Both go into the table's log as
the ``txn`` action of the commit that adds the files (Delta protocol, "Transaction Identifiers"). Spark's own Delta sink
uses the same identifiers. Therefore a query may change from one writer to the other between two runs and stays
exactly-once.

The checks of a commit (schema, constraints, generated columns) happen here, because Delta does not check files that
already exist. Tables with features that the files would have to follow are refused.

Invariant: ``commit`` adds all files of a batch together with the batch's number, or none.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from urllib.parse import unquote, urlsplit

from deltalake import CommitProperties, DeltaTable, Schema, Transaction
from deltalake.exceptions import CommitFailedError, DeltaError, DeltaProtocolError
from deltalake.transaction import AddAction, RemoveAction

from millrace.errors import EnvironmentProblemError, SchemaMismatchError, UsageError
from pyspark_millrace.delta.statistics import IndexedColumns

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_log = logging.getLogger(__name__)

_OTHER_WRITER: Final = "let Spark write this table"
FEATURES_KEPT: Final = {
    "appendOnly",
    "changeDataFeed",
    "checkConstraints",  # recognised by the table's properties
    "columnMapping",
    "deletionVectors",
    "generatedColumns",  # recognised by the metadata of fields
    "invariants",
    "timestampNtz",
    "v2Checkpoint",
}
_NUMBERS: Final = {"byte", "short", "integer", "long", "float", "double"}
_TYPES: Final = _NUMBERS | {"string", "binary", "boolean", "date", "timestamp", "timestamp_ntz"}
_FIELD_DUTIES: Final = {
    "delta.generationExpression": "is generated",
    "delta.invariants": "has an invariant",
    "delta.identity.start": "is an identity",
}
_ATTEMPTS_MAX: Final = 20


class MicroBatch(NamedTuple):
    """A micro-batch of a query; ``number`` only grows."""

    query_id: str
    number: int


@dataclass(frozen=True, slots=True)
class NewFile:
    """A complete data file; ``path`` is relative to the table. See ``data_files.FILE_SCHEMA``."""

    path: str
    partition_values: Mapping[str, str | None]
    size_bytes: int
    modified_ms: int
    rows: int
    statistics: str


@dataclass(frozen=True, slots=True)
class TableFacts:
    """Facts about a table that tasks and driver need before writing."""

    directory: str
    partition_by: tuple[str, ...]
    indexed_columns: IndexedColumns


@dataclass(frozen=True, slots=True)
class TableRequest:
    """Request to open a table for rows of one schema.

    The request can be sent to another process. ``schema`` is in the JSON form that Delta and Spark share. If ``merge``
    is true, new columns are added to the table.
    """

    location: str
    schema: Mapping[str, Any]
    partition_by: tuple[str, ...]
    merge: bool

    def open(self) -> TargetTable:
        """Open or create the table. Raises ``UsageError`` or ``SchemaMismatchError`` if it does not take such rows."""
        return TargetTable(self.location, self.schema, self.partition_by, merge=self.merge)


class TargetTable:
    """A Delta table that takes rows of one schema."""

    def __init__(self, location: str, schema: Mapping[str, Any], partition_by: Sequence[str], *, merge: bool) -> None:
        """Open or create the table.

        ``schema`` is in the JSON form that Delta and Spark share. If ``merge`` is true, new columns are added to the
        table. Raises ``UsageError`` or ``SchemaMismatchError`` when the table cannot take the rows.
        """
        self.directory = local_directory(location)
        _check_types(schema, self.directory)
        self._schema = schema
        self._partition_by = tuple(partition_by)
        self._merge = merge
        self._table = self._open()
        self._check()

    @property
    def indexed_columns(self) -> IndexedColumns:
        """The columns with statistics in files of this table."""
        return indexed_columns(self._table)

    @property
    def facts(self) -> TableFacts:
        """Facts about the table for tasks and driver."""
        return TableFacts(str(self.directory), self.partition_by, self.indexed_columns)

    @property
    def partition_by(self) -> tuple[str, ...]:
        """The table's partition columns."""
        return tuple(self._table.metadata().partition_columns)

    def has(self, batch: MicroBatch) -> bool:
        """Return whether the table already holds the batch, written by this process or another."""
        self._table.update_incremental()
        last = self._table.transaction_version(batch.query_id)
        return last is not None and last >= batch.number

    def commit(self, batch: MicroBatch, files: Sequence[NewFile]) -> int | None:
        """Add the files of a batch. Returns the table's new version, or ``None`` if the table already held the batch.

        Raises ``UsageError`` or ``SchemaMismatchError`` when the table was changed and does not take the files any
        more. Raises ``EnvironmentProblemError`` when every attempt conflicts with a commit of another writer.
        """
        properties = CommitProperties(
            custom_metadata={"isBlindAppend": True, "queryId": batch.query_id, "epochId": str(batch.number)},
            app_transactions=[Transaction(batch.query_id, batch.number)],
            max_commit_retries=0,
        )
        actions: list[AddAction | RemoveAction] = [
            AddAction(
                path=file.path,
                size=file.size_bytes,
                partition_values=file.partition_values,
                modification_time=file.modified_ms,
                data_change=True,
                stats=file.statistics,
            )
            for file in files
        ]
        for attempt in range(1, _ATTEMPTS_MAX + 1):
            # A commit in the meantime may come from another attempt of this batch, or may have changed the schema.
            if self.has(batch):
                return None
            self._check()
            try:
                self._table.create_write_transaction(
                    actions, "append", self._table.schema(), list(self.partition_by), commit_properties=properties
                )
            except CommitFailedError as error:
                if "Unsupported table features" in str(error):  # delta-rs reports this as a failed commit
                    raise UsageError(f"{self.directory}: {error}: {_OTHER_WRITER}") from error
                _log.info("commit of batch %s to %s, attempt %d: %s", batch, self.directory, attempt, error)
                last = error
                continue
            except DeltaProtocolError as error:
                raise UsageError(f"{self.directory}: {error}: {_OTHER_WRITER}") from error
            self._table.update_incremental()
            return int(self._table.version())
        raise EnvironmentProblemError(
            f"{self.directory}: other writers committed first {_ATTEMPTS_MAX} times in a row; run the ingest again"
        ) from last

    def _open(self) -> DeltaTable:
        directory = str(self.directory)
        # Columns are nullable, as in the tables that Spark's sink creates.
        schema = Schema.from_json(json.dumps(nullable(self._schema)))
        try:
            if DeltaTable.is_deltatable(directory):
                return DeltaTable(directory)
            return DeltaTable.create(directory, schema, mode="ignore", partition_by=list(self._partition_by) or None)
        except (DeltaError, OSError) as error:
            reason = " ".join(re.sub(r"\x1b\[\d+m|↳", " ", str(error)).split())  # delta-rs prints a coloured tree
            raise UsageError(f"{directory}: no Delta table can be created or opened there: {reason}") from error

    def _check(self) -> None:
        """Check that the table takes the rows. Adds the columns that the table lacks first, if ``merge`` is true."""
        self._check_duties()
        if self._partition_by and self._partition_by != self.partition_by:
            raise UsageError(
                f"{self.directory} is partitioned by ({', '.join(self.partition_by)}), not by "
                f"({', '.join(self._partition_by)}): leave the partition columns out, or choose another table"
            )
        there = self._fields()
        missing = [field for field in self._schema["fields"] if field["name"] not in there]
        if missing and not self._merge:
            raise SchemaMismatchError(
                f"{self.directory} has no column {', '.join(field['name'] for field in missing)}: allow columns to be "
                "added, or choose the columns to ingest"
            )
        if missing:
            added = Schema.from_json(json.dumps(nullable({"type": "struct", "fields": missing})))
            self._table.alter.add_columns(added.fields)
            there = self._fields()
        for field in self._schema["fields"]:
            _check_field(there[field["name"]], field, self.directory)
        absent = there.keys() - {field["name"] for field in self._schema["fields"]}
        if required := sorted(name for name in absent if not there[name]["nullable"]):
            raise SchemaMismatchError(
                f"{self.directory}: column {', '.join(required)} is NOT NULL but not ingested: ingest it too, or "
                "drop NOT NULL"
            )

    def _check_duties(self) -> None:
        properties = self._table.metadata().configuration
        for name, value in properties.items():
            if name.startswith("delta.constraints."):
                raise UsageError(f"{self.directory} has the constraint {name[18:]} ({value}): {_OTHER_WRITER}")
        if (mode := properties.get("delta.columnMapping.mode", "none")) != "none":
            raise UsageError(f"{self.directory} maps its columns by {mode}: {_OTHER_WRITER}")
        for name, field in self._fields().items():
            for duty, what in _FIELD_DUTIES.items():
                if duty in field["metadata"]:
                    raise UsageError(f"{self.directory}: column {name} {what}: {_OTHER_WRITER}")
        if unknown := set(self._table.protocol().writer_features or ()) - FEATURES_KEPT:
            raise UsageError(
                f"{self.directory} has features that a direct ingest does not know ({', '.join(sorted(unknown))}): "
                f"{_OTHER_WRITER}"
            )

    def _fields(self) -> dict[str, dict[str, Any]]:
        return {field["name"]: field for field in json.loads(self._table.schema().to_json())["fields"]}


def indexed_columns(table: DeltaTable) -> IndexedColumns:
    """Return the columns with statistics in files of a table."""
    properties = table.metadata().configuration
    names = properties.get("delta.dataSkippingStatsColumns")
    return IndexedColumns(
        int(properties.get("delta.dataSkippingNumIndexedCols", "32")),
        None if names is None else frozenset(name.strip().strip("`") for name in names.split(",")),
    )


def local_directory(location: str) -> Path:
    """Return the absolute directory of a path or ``file:`` URI. Raises ``UsageError`` for another scheme."""
    parts = urlsplit(location)
    if not parts.scheme:
        return Path(location).absolute()
    if parts.scheme == "file" and parts.netloc in ("", "localhost"):
        return Path(unquote(parts.path))
    raise UsageError(
        f"{location}: a direct ingest writes to local and shared file systems (a path or file: URI): let Spark write "
        "this table"
    )


def is_local(spark: SparkSession, path: str) -> bool:
    """Return whether Spark finds ``path`` on the file system that this process sees."""
    scheme = urlsplit(path).scheme
    if not scheme:
        scheme = urlsplit(spark._jsc.hadoopConfiguration().get("fs.defaultFS", "file:///")).scheme
    return scheme == "file"


def _check_types(schema: Any, directory: Path, column: str = "") -> None:
    """Raise ``UsageError`` for a type that Delta tables do not have."""
    if isinstance(schema, str):
        if schema not in _TYPES and not schema.startswith("decimal("):
            raise UsageError(
                f"{directory}: column {column} is {schema}, a type that Delta does not support: choose other columns"
            )
        return
    for field in schema.get("fields", ()):
        _check_types(field["type"], directory, column or field["name"])
    for part in ("elementType", "keyType", "valueType"):
        if part in schema:
            _check_types(schema[part], directory, column)


def _check_field(there: Mapping[str, Any], ours: Mapping[str, Any], directory: Path) -> None:
    if nullable(there["type"]) != nullable(ours["type"]):
        raise SchemaMismatchError(
            f"{directory}: column {ours['name']} is {_type_text(there['type'])} in the table and "
            f"{_type_text(ours['type'])} in the ingested rows: choose other columns, or another table"
        )
    if ours["nullable"] and not there["nullable"]:
        raise SchemaMismatchError(
            f"{directory}: column {ours['name']} is NOT NULL in the table but nullable in the ingested rows: "
            "drop NOT NULL"
        )


def nullable(schema: Any) -> Any:
    """Return a type in JSON with all fields, elements and values nullable, and without the metadata of fields."""
    if not isinstance(schema, Mapping):
        return schema
    changed = {key: nullable(value) for key, value in schema.items() if key != "metadata"}
    if "fields" in schema:
        changed["fields"] = [nullable(field) | {"metadata": {}} for field in schema["fields"]]
    return changed | {key: True for key in ("nullable", "containsNull", "valueContainsNull") if key in schema}


def _type_text(data_type: Any) -> str:
    return data_type if isinstance(data_type, str) else json.dumps(data_type)
