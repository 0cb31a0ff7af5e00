"""The batch that steps hand to each other: records, or changes of a table, of one edge in processing order.

A batch is seen in two ways, made of one another when first asked for:

* as **columns**, a polars frame of the layout's columns and the reserved ``__timestamp`` (event time in ms) and, where
  rows without a value are among those of a typed layout, ``__tombstone``: what vectorised steps work on;
* as **lists** of keys, values and times, in Python's own objects: what steps with loops and users' functions work on.
  A key is the bare value of its one column, a tuple of several, or a ``Windowed``; a value is a bare value, a dict
  of the row's columns, or None.

A table's batch holds changes: ``olds`` are the values that the new ones replace, where its consumers asked for them,
and ``latest`` says of each change of a versioned table whether it is the newest of its key.

Where a record stands among others is not the batch's affair: ``millrace_streams.steps.flow`` keeps that beside it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import polars as pl

from millrace_streams.layout import Layout
from millrace_streams.steps.codec import columns_of, keys_of, values_of

TIMESTAMP: Final = "__timestamp"
OFFSET: Final = "__offset"
PARTITION: Final = "__partition"
TOMBSTONE: Final = "__tombstone"
SEQUENCE: Final = "__sequence"

NO_TIMESTAMP: Final = -1
"""Stream time before the first record."""

Rows = npt.NDArray[np.int64]
"""Numbers of rows."""


class Batch:
    """Records or changes in order; immutable. Made by ``of_frame`` or ``of_lists``."""

    __slots__ = ("_frame", "_keys", "_olds", "_times", "_values", "height", "latest", "layout")

    def __init__(self, layout: Layout, height: int) -> None:
        """An empty shell: use ``of_frame`` or ``of_lists``."""
        self.layout = layout
        self.height = height
        self.latest: list[bool] | None = None
        self._frame: pl.DataFrame | None = None
        self._keys: list[Any] | None = None
        self._values: list[Any] | None = None
        self._times: list[int] | None = None
        self._olds: list[Any] | None = None

    @classmethod
    def of_frame(cls, layout: Layout, frame: pl.DataFrame, *, olds: list[Any] | None = None) -> Batch:
        """A batch of columns: at least the layout's and ``__timestamp``."""
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
        """A batch of Python's objects."""
        batch = cls(layout, len(keys))
        batch._keys, batch._values, batch._times, batch._olds = keys, values, times, olds
        batch.latest = latest
        return batch

    @property
    def frame(self) -> pl.DataFrame:
        """The batch as columns. Raises polars' errors or ``TypeError`` when a value is not of its column's type."""
        if self._frame is None:
            assert self._keys is not None
            assert self._values is not None
            columns = columns_of(self.layout, self._keys, self._values)
            columns.append(pl.Series(TIMESTAMP, self._times, dtype=pl.Int64))
            if not self.layout.scalar and None in self._values:
                gone = [value is None for value in self._values]
                columns.append(pl.Series(TOMBSTONE, gone, dtype=pl.Boolean))
            self._frame = pl.DataFrame(columns)
        return self._frame

    @property
    def keys(self) -> list[Any]:
        """The keys, None where a record has none."""
        if self._keys is None:
            self._keys = keys_of(self.layout, self.frame)
        return self._keys

    @property
    def values(self) -> list[Any]:
        """The values (of a table: the new ones), None where there is none."""
        if self._values is None:
            values = values_of(self.layout, self.frame)
            if TOMBSTONE in self.frame.columns:
                gone = self.frame[TOMBSTONE].to_list()
                values = [None if none else value for value, none in zip(values, gone, strict=True)]
            self._values = values
        return self._values

    @property
    def times(self) -> list[int]:
        """Event times in ms."""
        if self._times is None:
            self._times = self.frame[TIMESTAMP].to_list()
        return self._times

    @property
    def olds(self) -> list[Any]:
        """The values that a table's new ones replace; all None where they were not asked for."""
        if self._olds is None:
            self._olds = [None] * self.height
        return self._olds

    def with_layout(self, layout: Layout) -> Batch:
        """The same rows, seen as of another layout with the same columns."""
        batch = Batch(layout, self.height)
        batch._frame = self._frame
        batch._keys, batch._values, batch._times = self._keys, self._values, self._times
        return batch

    def with_values(self, values: list[Any]) -> Batch:
        """The same keys and times with other values of the same layout."""
        return Batch.of_lists(self.layout, self.keys, values, self.times)

    def canonical(self) -> Batch:
        """The same rows, each a dict of all the layout's columns, whatever a function gave more or in another order."""
        olds = self._olds
        if olds is not None and any(old is not None for old in olds):
            olds = self.with_values(olds).canonical().values
        batch = Batch.of_frame(self.layout, self.frame, olds=olds)
        batch.latest = self.latest
        return batch

    def take(self, rows: Sequence[int] | Rows) -> Batch:
        """The rows of these numbers, in their order."""
        batch = Batch(self.layout, len(rows))
        numbers = rows.tolist() if isinstance(rows, np.ndarray) else rows
        if self._keys is not None or self._frame is None:
            keys, values, times = self.keys, self.values, self.times
            batch._keys = [keys[row] for row in numbers]
            batch._values = [values[row] for row in numbers]
            batch._times = [times[row] for row in numbers]
        else:
            batch._frame = self._frame[rows]
        if self._olds is not None:
            batch._olds = [self._olds[row] for row in numbers]
        if self.latest is not None:
            batch.latest = [self.latest[row] for row in numbers]
        return batch


def empty_batch(layout: Layout) -> Batch:
    """No records."""
    return Batch.of_lists(layout, [], [], [])


def concatenate(layout: Layout, batches: Sequence[Batch]) -> Batch:
    """All rows of batches of the same columns, one batch after the other."""
    if all(batch._keys is None for batch in batches) and not any(batch._olds for batch in batches):
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
