"""Batches between steps: records or table changes, in processing order.

A batch has two forms, each derived from the other on first use:

* **columns**, a polars frame of the layout's columns and the reserved ``__timestamp`` (event time in ms), for
  vectorised steps. If a typed layout has rows without a value, the frame also has ``__tombstone``;
* **lists** of keys, values and times as Python objects, for steps with loops and user functions.

A key is the bare value of its one column, a tuple of several, or a ``Windowed``. A value is a bare value, a dict of the
row's columns, or None.

A table's batch holds changes. ``olds`` are the replaced values, if consumers need them. ``latest`` tells for each
change of a versioned table whether it is the newest of its key.

A batch does not hold the order of its records among others; ``millrace_streams.steps.flow`` keeps it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import polars as pl

from millrace_streams.frames.cells import are_exact, are_exact_keys
from millrace_streams.frames.codec import key_columns_of, keys_of, value_columns_of, values_of
from millrace_streams.layout import Layout

TIMESTAMP: Final = "__timestamp"
OFFSET: Final = "__offset"
PARTITION: Final = "__partition"
TOMBSTONE: Final = "__tombstone"
SEQUENCE: Final = "__sequence"
HEADERS: Final = "__headers"
TOPIC: Final = "__topic"

NO_TIMESTAMP: Final = -1
"""Stream time before the first record."""

Rows = npt.NDArray[np.int64]
"""Row numbers."""
NO_ROWS: Final = np.zeros(0, dtype=np.int64)


class Batch:
    """Records or changes in order; immutable. Made by ``of_frame`` or ``of_lists``."""

    __slots__ = (
        "_frame",
        "_keys",
        "_like",
        "_olds",
        "_rest",
        "_taken",
        "_times",
        "_values",
        "height",
        "latest",
        "layout",
    )

    def __init__(self, layout: Layout, height: int) -> None:
        """Create an empty shell; use ``of_frame`` or ``of_lists``."""
        self.layout = layout
        self.height = height
        self.latest: list[bool] | None = None
        self._frame: pl.DataFrame | None = None
        self._keys: list[Any] | None = None
        self._values: list[Any] | None = None
        self._times: list[int] | None = None
        self._olds: list[Any] | None = None
        # Origin of missing parts: rows of another batch, a batch with the same keys and times, or a batch that differs
        # only in its keys.
        self._taken: tuple[Batch, Rows] | None = None
        self._like: Batch | None = None
        self._rest: Batch | None = None

    @classmethod
    def of_frame(cls, layout: Layout, frame: pl.DataFrame, *, olds: list[Any] | None = None) -> Batch:
        """Create a batch from columns: at least the layout's and ``__timestamp``."""
        batch = cls(layout, frame.height)
        batch._frame = frame
        batch._olds = olds
        return batch

    @classmethod
    def of_lists(
        cls,
        layout: Layout,
        keys: list[Any],
        values: list[Any],
        times: list[int],
        *,
        olds: list[Any] | None = None,
        latest: list[bool] | None = None,
    ) -> Batch:
        """Create a batch from Python objects."""
        batch = cls(layout, len(keys))
        batch._keys, batch._values, batch._times, batch._olds = keys, values, times, olds
        batch.latest = latest
        return batch

    @property
    def in_columns(self) -> bool:
        """True if the batch has columns, or takes its rows from a batch that has columns."""
        return self._frame is not None or (self._taken is not None and self._taken[0].in_columns)

    @property
    def frame(self) -> pl.DataFrame:
        """The batch as columns. Raises polars' errors or ``TypeError`` if a value does not fit its column's type."""
        if self._frame is None:
            if self._taken is not None and self._taken[0].in_columns:
                source, rows = self._taken
                self._frame = source.frame[rows]
            else:
                self._frame = self._made_of_lists()
        return self._frame

    @property
    def keys(self) -> list[Any]:
        """Keys; None for records without a key."""
        if self._keys is None:
            found = self._found("keys")
            self._keys = found if found is not None else keys_of(self.layout, self.frame)
        return self._keys

    @property
    def values(self) -> list[Any]:
        """Values (of a table: the new ones); None for records without a value."""
        if self._values is None:
            found = self._found("values")
            if found is None:
                found = values_of(self.layout, self.frame)
                if TOMBSTONE in self.frame.columns:
                    gone = self.frame[TOMBSTONE].to_list()
                    found = [None if none else value for value, none in zip(found, gone, strict=True)]
            self._values = found
        return self._values

    @property
    def times(self) -> list[int]:
        """Event times in ms."""
        if self._times is None:
            found = self._found("times")
            self._times = found if found is not None else self.frame[TIMESTAMP].to_list()
        return self._times

    @property
    def olds(self) -> list[Any]:
        """Old values of a table's changes; all None if no consumer needs them."""
        return self._olds if self._olds is not None else [None] * self.height

    @property
    def present(self) -> list[bool]:
        """True for each row with a value; computed from columns without creating values."""
        bare = self.layout.value
        # A cell of a serde's column, such as JSON, may still be None in Python.
        if self._values is not None or not self.in_columns or (bare and self.layout.schema.field(bare).metadata):
            return [value is not None for value in self.values]
        if bare:
            return self.frame[bare].is_not_null().to_list()
        return (~self.frame[TOMBSTONE]).to_list() if TOMBSTONE in self.frame.columns else [True] * self.height

    def _made_of_lists(self) -> pl.DataFrame:
        if self._rest is not None and self._rest.in_columns:
            others = [name for name in self.layout.names if name not in self.layout.key]
            frame = self._rest.frame.select(*others, TIMESTAMP).with_columns(key_columns_of(self.layout, self.keys))
            return frame.select(*self.layout.names, TIMESTAMP)
        if self._like is not None and self._like.in_columns:
            kept = self._like.frame.select(*self.layout.key_columns, TIMESTAMP)
        else:
            times = pl.Series(TIMESTAMP, self.times, dtype=pl.Int64)
            kept = pl.DataFrame([*key_columns_of(self.layout, self.keys), times])
        computed = value_columns_of(self.layout, self.values)
        frame = kept.with_columns(computed).select(*self.layout.names, TIMESTAMP)
        if self.layout.scalar or None not in self.values:
            return frame
        gone = [value is None for value in self.values]
        return frame.with_columns(pl.Series(TOMBSTONE, gone, dtype=pl.Boolean))

    def _found(self, name: str) -> list[Any] | None:
        """Return a list from the batch that has it; None if there is none, or if columns are cheaper."""
        alike = self._like if self._like is not None else self._rest
        if alike is not None:
            found: list[Any] = getattr(alike, name)
            return found
        if self._taken is None:
            return None
        source, rows = self._taken
        if source.in_columns and getattr(source, f"_{name}") is None:
            return None
        return list(map(getattr(source, name).__getitem__, rows.tolist()))

    def with_layout(self, layout: Layout) -> Batch:
        """Return the same rows under another layout with the same columns."""
        batch = Batch(layout, self.height)
        batch._frame, batch._taken, batch._like, batch._rest = self._frame, self._taken, self._like, self._rest
        batch._keys, batch._values, batch._times = self._keys, self._values, self._times
        return batch

    def with_values(self, values: list[Any], layout: Layout | None = None) -> Batch:
        """Return the same keys and times with other values, under this layout or one with the same key."""
        batch = Batch(layout if layout is not None else self.layout, self.height)
        batch._values, batch._like = values, self
        return batch

    def with_keys(self, keys: list[Any], layout: Layout) -> Batch:
        """Return the same values and times under other keys; ``layout`` has its own column for them."""
        if not layout.scalar:
            return Batch.of_lists(layout, keys, self.values, self.times)
        batch = Batch(layout, self.height)
        batch._keys, batch._rest = keys, self
        return batch

    def with_times(self, times: pl.Series) -> Batch:
        """Return the same records at other times, a series of ms named ``__timestamp``."""
        batch = Batch.of_frame(self.layout, self.frame.with_columns(times))
        batch._keys, batch._values = self._keys, self._values
        return batch

    def with_changes(self, layout: Layout, olds: list[Any] | None, latest: list[bool] | None) -> Batch:
        """Return the same rows as changes of a table."""
        batch = self.with_layout(layout)
        batch._olds, batch.latest = olds, latest
        return batch

    def rows_with_key(self) -> Rows:
        """Return the numbers of the rows that have a key."""
        if self._keys is None and self.in_columns:
            there = pl.any_horizontal([pl.col(name).is_not_null() for name in self.layout.key])
            return self.frame.select(there).to_series().arg_true().to_numpy().astype(np.int64)
        return np.asarray([row for row, key in enumerate(self.keys) if key is not None], dtype=np.int64)

    def canonical(self) -> Batch:
        """Return the same rows with the values that the columns return, even if a function returned others."""
        olds = self._olds
        if olds is not None and any(old is not None for old in olds):
            olds = self.with_values(olds).canonical().values
        keys = self._keys if self._has_exact_keys() else None
        values = self._values if self._has_exact_values() else None
        if self.layout.scalar and keys is self._keys and values is self._values:
            batch = self.with_layout(self.layout)
        else:
            batch = Batch.of_frame(self.layout, self.frame)
            batch._keys, batch._values, batch._times = keys, values, self._times
        batch._olds, batch.latest = olds, self.latest
        return batch

    def _has_exact_keys(self) -> bool:
        """Return whether the batch has a list of keys, and the key columns give them back unchanged."""
        keys, fields = self._keys, [self.layout.schema.field(name) for name in self.layout.key]
        if keys is None or not fields:
            return False
        if self.layout.windowed:
            keys = [None if key is None else key.key for key in keys]
        if len(fields) == 1:
            return are_exact_keys(fields[0], keys)
        parts = zip(*(key for key in keys if key is not None), strict=True)
        return all(are_exact_keys(field, list(cells)) for field, cells in zip(fields, parts, strict=False))

    def _has_exact_values(self) -> bool:
        """Return whether the batch has a list of bare values, and their column gives them back unchanged."""
        column = self.layout.value
        return bool(column) and self._values is not None and are_exact(self.layout.schema.field(column), self._values)

    def take(self, rows: Sequence[int] | Rows) -> Batch:
        """Return the rows with these numbers, in their order; columns and lists are taken on use."""
        batch = Batch(self.layout, len(rows))
        numbers = np.asarray(rows, dtype=np.int64)
        batch._taken = (self, numbers)
        if self._taken is not None and not any((self._frame is not None, self._keys, self._values, self._times)):
            source, rows_before = self._taken
            batch._taken = (source, rows_before[numbers])
        if self._olds is not None:
            batch._olds = list(map(self._olds.__getitem__, numbers.tolist()))
        if self.latest is not None:
            batch.latest = list(map(self.latest.__getitem__, numbers.tolist()))
        return batch


def empty_batch(layout: Layout) -> Batch:
    """Return a batch without records."""
    return Batch.of_lists(layout, [], [], [])


def concatenate(layout: Layout, batches: Sequence[Batch]) -> Batch:
    """Concatenate batches with the same columns."""
    if all(batch.in_columns and batch._keys is None and batch._olds is None for batch in batches):
        return Batch.of_frame(layout, pl.concat([batch.frame for batch in batches], how="diagonal"))
    changes = any(batch._olds is not None for batch in batches)
    versions = any(batch.latest is not None for batch in batches)
    return Batch.of_lists(
        layout,
        [key for batch in batches for key in batch.keys],
        [value for batch in batches for value in batch.values],
        [time for batch in batches for time in batch.times],
        olds=[old for batch in batches for old in batch.olds] if changes else None,
        latest=[new for batch in batches for new in (batch.latest or [True] * batch.height)] if versions else None,
    )
