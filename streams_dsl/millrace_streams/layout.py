"""Layout of an edge: columns, key, value, bucket columns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import pyarrow as pa

from millrace_streams.errors import UnknownColumnError

WINDOW_START: Final = "window_start"
WINDOW_END: Final = "window_end"
WINDOW_TYPE: Final = pa.timestamp("us", tz="UTC")
WINDOW_COLUMNS: Final = (WINDOW_START, WINDOW_END)
RESERVED_PREFIX: Final = "__"
KEY: Final = "key"
ASKING: Final = "left."
"""Prefix of the left table's key columns in a foreign-key subscription."""
ANSWER: Final = "right."
"""Prefix of the right row's columns in the response."""
VALUE: Final = "value"


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicShape:
    """Content of a topic, as far as a topology needs it.

    ``scalar`` marks a topic of single values (opaque, with the columns ``key`` and ``value``). Its functions get the
    bare value, and a record with a null value is a tombstone.
    """

    schema: pa.Schema
    key_columns: tuple[str, ...] = ()
    scalar: bool = False


OPAQUE_SHAPE: Final = TopicShape(
    schema=pa.schema([pa.field(KEY, pa.binary()), pa.field(VALUE, pa.binary())]), key_columns=(KEY,), scalar=True
)
"""Shape of a topic without a schema."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """Columns of a stream or table, without the reserved columns of batches.

    Every batch has the reserved columns. ``value`` names the column with the bare value; None means that the value is
    the whole row, a dict in Python. With ``windowed`` the key includes a window, in the columns ``window_start`` and
    ``window_end``. ``sessions`` are identified by both columns.

    ``bucket_columns`` are columns whose equal values imply the same bucket (source partition). None means that no
    remaining columns do, and that records must be repartitioned before a grouping. With ``spreads_nulls`` rows with
    nulls in all of them are in any bucket, because producers spread records without a key.
    """

    schema: pa.Schema
    key: tuple[str, ...]
    bucket_columns: tuple[str, ...] | None
    value: str | None = None
    table: bool = False
    windowed: bool = False
    sessions: bool = False
    spreads_nulls: bool = False

    @property
    def scalar(self) -> bool:
        """True if the value is a bare value."""
        return self.value is not None

    @property
    def names(self) -> list[str]:
        """Names of the columns, in order."""
        return list(self.schema.names)

    @property
    def key_columns(self) -> tuple[str, ...]:
        """Columns that identify a row: those of the key, and of the window if there is one."""
        return (*self.key, *WINDOW_COLUMNS) if self.windowed else self.key

    @property
    def row_key(self) -> list[str]:
        """The fewest columns by which rows of a table replace each other."""
        if not self.windowed:
            return list(self.key)
        return [*self.key, *(WINDOW_COLUMNS if self.sessions else WINDOW_COLUMNS[:1])]

    @property
    def value_columns(self) -> list[str]:
        """Columns outside the key."""
        return [name for name in self.schema.names if name not in self.key_columns]

    @property
    def answered(self) -> Layout:
        """Layout of the right rows in the responses of a foreign-key join."""
        columns = [field for field in self.schema if field.name.startswith(ANSWER)]
        schema = pa.schema([field.with_name(field.name.removeprefix(ANSWER)) for field in columns])
        value = None if self.value is None else self.value.removeprefix(ANSWER)
        return Layout(schema=schema, key=(), bucket_columns=None, value=value)

    def require(self, columns: Sequence[str] | frozenset[str], node: str) -> None:
        """Check that the columns exist. Raises ``UnknownColumnError`` naming ``node``."""
        missing = sorted(set(columns) - set(self.names))
        if missing:
            raise UnknownColumnError(
                f"{node}: no column {', '.join(missing)} in its input; the columns are {', '.join(self.names)}"
            )
