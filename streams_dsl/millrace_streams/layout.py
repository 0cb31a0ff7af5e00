"""What flows along an edge of a topology: columns and types, key, and what decides the bucket."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import pyarrow as pa

from millrace_streams.errors import UnknownColumnError

WINDOW_START: Final = "window_start"
WINDOW_END: Final = "window_end"
WINDOW_TYPE: Final = pa.timestamp("us", tz="UTC")
RESERVED_PREFIX: Final = "__"
KEY: Final = "key"
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

    ``bucket_columns`` are columns whose equality implies the same bucket (source partition); None when no column left
    says so, and records must move before they can be grouped.
    """

    schema: pa.Schema
    key: tuple[str, ...]
    bucket_columns: tuple[str, ...] | None
    table: bool = False
    windowed: bool = False
    scalar: bool = False

    @property
    def names(self) -> list[str]:
        """Names of the columns, in order."""
        return list(self.schema.names)

    def require(self, columns: Sequence[str] | frozenset[str], node: str) -> None:
        """Check that the columns are there. Raises ``UnknownColumnError`` naming ``node``."""
        missing = sorted(set(columns) - set(self.names))
        if missing:
            raise UnknownColumnError(
                f"{node}: no column {', '.join(missing)} in its input; the columns are {', '.join(self.names)}"
            )
