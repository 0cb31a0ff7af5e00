"""What flows along an edge of a topology: columns and types, key, value, and what decides the bucket."""

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
"""Before the columns of the key that a foreign key's subscription comes from."""
ANSWER: Final = "right."
"""Before the columns of the row that it is answered with."""
VALUE: Final = "value"


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicShape:
    """What a topic holds, as far as a topology must know.

    ``scalar`` marks a topic of single values (an opaque one: columns ``key`` and ``value``): functions then get the
    bare value, and a record whose value is null is a tombstone.
    """

    schema: pa.Schema
    key_columns: tuple[str, ...] = ()
    scalar: bool = False


OPAQUE_SHAPE: Final = TopicShape(
    schema=pa.schema([pa.field(KEY, pa.binary()), pa.field(VALUE, pa.binary())]), key_columns=(KEY,), scalar=True
)
"""The shape of a topic without a schema."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """Columns of a stream or table, without the reserved ones that every batch carries.

    ``value`` names the one column that is the bare value; None when the value is the whole row, a dict in Python.
    ``windowed`` says that the key includes a window, in the columns ``window_start`` and ``window_end``; ``sessions``
    are told apart by both.
    ``bucket_columns`` are columns whose equality implies the same bucket (source partition); None when no column left
    says so, and records must move before they can be grouped.
    """

    schema: pa.Schema
    key: tuple[str, ...]
    bucket_columns: tuple[str, ...] | None
    value: str | None = None
    table: bool = False
    windowed: bool = False
    sessions: bool = False

    @property
    def scalar(self) -> bool:
        """Whether the value is a bare one."""
        return self.value is not None

    @property
    def names(self) -> list[str]:
        """Names of the columns, in order."""
        return list(self.schema.names)

    @property
    def key_columns(self) -> tuple[str, ...]:
        """The columns that identify a row: the key's, and the window's if there is one."""
        return (*self.key, *WINDOW_COLUMNS) if self.windowed else self.key

    @property
    def row_key(self) -> list[str]:
        """The columns by which a table's rows replace one another, as few as do it."""
        if not self.windowed:
            return list(self.key)
        return [*self.key, *(WINDOW_COLUMNS if self.sessions else WINDOW_COLUMNS[:1])]

    @property
    def value_columns(self) -> list[str]:
        """The columns that are not part of the key."""
        return [name for name in self.schema.names if name not in self.key_columns]

    @property
    def answered(self) -> Layout:
        """Of the answers in a foreign-key join, the values of the rows that they are."""
        columns = [field for field in self.schema if field.name.startswith(ANSWER)]
        schema = pa.schema([field.with_name(field.name.removeprefix(ANSWER)) for field in columns])
        value = None if self.value is None else self.value.removeprefix(ANSWER)
        return Layout(schema=schema, key=(), bucket_columns=None, value=value)

    def require(self, columns: Sequence[str] | frozenset[str], node: str) -> None:
        """Check that the columns are there. Raises ``UnknownColumnError`` naming ``node``."""
        missing = sorted(set(columns) - set(self.names))
        if missing:
            raise UnknownColumnError(
                f"{node}: no column {', '.join(missing)} in its input; the columns are {', '.join(self.names)}"
            )
