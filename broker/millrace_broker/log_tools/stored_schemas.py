"""Schemas of typed topics, from the broker's metadata beside its logs.

A running broker locks the store exclusively. The module therefore reads a copy, with the journal of the newest changes.
"""

from __future__ import annotations

import shutil
import sqlite3
import tempfile
from contextlib import closing
from pathlib import Path

import pyarrow as pa

from millrace.coordination import METADATA_FILE
from millrace.coordination.nodes import SchemaNode
from millrace.errors import MillraceError, UnknownSchemaError
from millrace.schemas import deserialize_schema

_SUFFIXES = ("", "-wal")
_SCHEMAS = "/millrace/schemas/"


class StoredSchemas:
    """Look-up of schemas by id.

    ``given`` is used for every id. Without it, the store in ``directory`` is read when needed.
    """

    def __init__(self, directory: Path | None, given: pa.Schema | None = None) -> None:
        self._path = None if directory is None else directory / METADATA_FILE
        self._given = given
        self._found: dict[int, pa.Schema] | None = None

    def __call__(self, schema_id: int) -> pa.Schema:
        """Return a schema. Raises ``UnknownSchemaError`` if no schema has that id."""
        if self._given is not None:
            return self._given
        if self._found is None:
            self._found = self._read()
        if schema_id not in self._found:
            where = "no metadata was found beside the log" if self._path is None else f"{self._path} does not have it"
            raise UnknownSchemaError(f"schema {schema_id} is not known ({where}): give it with --schema")
        return self._found[schema_id]

    def _read(self) -> dict[int, pa.Schema]:
        if self._path is None or not self._path.is_file():
            self._path = None
            return {}
        try:
            return _read_copy(self._path)
        except (sqlite3.Error, OSError, ValueError, MillraceError) as error:
            raise UnknownSchemaError(
                f"{self._path} cannot be read ({error}): give the topic's schema with --schema"
            ) from error


def _read_copy(path: Path) -> dict[int, pa.Schema]:
    with tempfile.TemporaryDirectory(prefix="millrace-") as scratch:
        copy = Path(scratch, path.name)
        for suffix in _SUFFIXES:
            source = path.with_name(path.name + suffix)
            if source.is_file():
                shutil.copyfile(source, copy.with_name(copy.name + suffix))
        with closing(sqlite3.connect(copy)) as database:
            rows = database.execute(
                "SELECT substr(path, ?), data FROM node WHERE path LIKE ?", (len(_SCHEMAS) + 1, f"{_SCHEMAS}%")
            ).fetchall()
    return {int(number): deserialize_schema(SchemaNode.decode(data).arrow_schema) for number, data in rows}
