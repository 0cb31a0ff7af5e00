"""The batch of records that steps hand to each other: a polars frame with two reserved columns.

* ``__timestamp`` int64: event time in ms since 1970
* ``__offset`` int64: offset, in its source partition, of the record that this row comes from

Rows are in record order: the order of the source partition, in which a task handles them one after the other.
"""

from __future__ import annotations

from typing import Final

import polars as pl

TIMESTAMP: Final = "__timestamp"
OFFSET: Final = "__offset"
PARTITION: Final = "__partition"
RESERVED: Final[dict[str, type[pl.DataType]]] = {TIMESTAMP: pl.Int64, OFFSET: pl.Int64}

NO_TIMESTAMP: Final = -1
"""Stream time before the first record."""


def empty_records(schema: pl.Schema) -> pl.DataFrame:
    """No records, with the columns of ``schema`` and the reserved ones."""
    return pl.DataFrame(schema={**schema, **RESERVED})
