"""Pages: the parts that a large store is kept in, so that a batch reads those that its keys fall into and no others.

A row's page is given by its *slot*, a stretch of time, where rows have a time after which they are not needed, and by
its *part* of the slot, which the hash of its key decides. So what is over is dropped by whole slots, unread.

Invariants:

* the parts of a slot are a power of four in number, and a row is in part ``hash mod parts``: when a slot's parts become
  four times as many, the rows of each go to four new ones;
* slots are equally long for the life of a checkpoint, whatever retention says later.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt
import polars as pl

from millrace_streams.state.hashing import hashes_of

SLOTS_PER_RETENTION: Final = 8
GROWTH: Final = 4
_FOREVER_MS: Final = 2**63 - 1
NO_SLOT: Final = 0
"""The one slot of rows without a time."""


class Page(NamedTuple):
    """The number of a page."""

    slot: int
    part: int


class Slot(NamedTuple):
    """A slot: how many parts it has, and how many bytes they have together."""

    parts: int = 1
    size_bytes: int = 0

    def grown(self, added_bytes: int, page_bytes_max: int) -> int:
        """How many parts there should be when bytes are added, which replace others, or do not."""
        parts = self.parts
        while max(self.size_bytes, added_bytes) > parts * page_bytes_max:
            parts *= GROWTH
        return parts


@dataclass(frozen=True, slots=True, kw_only=True)
class RowsSpec:
    """What rows of a store are: their columns, and which of them tell one entry from another.

    Rows of the same ``identity`` are an entry and replace each other as a whole. ``key`` are the columns of the
    identity whose hash gives the part, ``time`` is the one, of ms or an instant, that gives the slot.
    ``retention_ms`` says how long rows are needed. Without ``paged`` all of them lie in the log.
    """

    name: str
    schema: pl.Schema
    identity: tuple[str, ...]
    key: tuple[str, ...]
    time: str | None = None
    retention_ms: int = 0
    paged: bool = True

    def slot_ms(self, shortest_ms: int) -> int:
        """How long a slot is in a new checkpoint."""
        return max(self.retention_ms // SLOTS_PER_RETENTION, shortest_ms)

    def times_of(self, rows: pl.DataFrame) -> pl.Series:
        """The times of rows in ms."""
        assert self.time is not None
        times = rows[self.time]
        # The end of all time is null in columns.
        return times.dt.timestamp("ms").fill_null(_FOREVER_MS) if times.dtype == pl.Datetime else times

    def slots_of(self, rows: pl.DataFrame, slot_ms: int) -> npt.NDArray[np.int64]:
        """The slot of each row."""
        if self.time is None:
            return np.full(rows.height, NO_SLOT, dtype=np.int64)
        return self.times_of(rows).to_numpy() // slot_ms

    def parts_of(self, rows: pl.DataFrame, parts: int) -> npt.NDArray[np.int64]:
        """The part of each row of a slot that has so many."""
        if parts == 1:
            return np.zeros(rows.height, dtype=np.int64)
        return (hashes_of(rows.select(self.key)) & np.uint32(parts - 1)).astype(np.int64)

    def since(self, rows: pl.DataFrame, kept_from_ms: int) -> pl.DataFrame:
        """The rows that are not over."""
        return rows if self.time is None else rows.filter(self.times_of(rows) >= kept_from_ms)


def split(rows: pl.DataFrame, numbers: npt.NDArray[np.int64]) -> Iterator[tuple[int, pl.DataFrame]]:
    """Rows by the number that each has, in their order."""
    if not rows.height:
        return
    if numbers[0] == numbers[-1] and (numbers == numbers[0]).all():
        yield int(numbers[0]), rows
        return
    name = "__of_page"
    parts = rows.with_columns(pl.Series(name, numbers)).partition_by(
        name, as_dict=True, include_key=False, maintain_order=True
    )
    for (number,), part in sorted(parts.items()):
        yield int(number), part
