"""Pages: parts of a large store, read one by one.

A batch reads only the pages of its keys. The page of a row is a *part* of a *slot*. A slot is an interval of time, if
rows expire by time. The hash of the key selects the part. So expired rows are dropped by whole slots, unread.

Invariants:

* The number of parts of a slot is a power of four, and a row is in part ``hash mod parts``. When a slot gets four times
  as many parts, the rows of each part go to four new ones.
* Slots have the same length for the life of a checkpoint, whatever the retention is later.
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
"""The single slot of rows without a time."""


class Page(NamedTuple):
    """The number of a page."""

    slot: int
    part: int


class Slot(NamedTuple):
    """A slot: its number of parts, and their total size in bytes."""

    parts: int = 1
    size_bytes: int = 0

    def grown(self, added_bytes: int, page_bytes_max: int) -> int:
        """Return the number of parts after an addition of bytes, which may or may not replace others."""
        parts = self.parts
        while max(self.size_bytes, added_bytes) > parts * page_bytes_max:
            parts *= GROWTH
        return parts


@dataclass(frozen=True, slots=True, kw_only=True)
class RowsSpec:
    """Description of the rows of a store.

    ``schema`` has the columns of the rows, and ``identity`` names the columns that identify an entry. Rows with the
    same ``identity`` form an entry and are replaced together. ``key`` are the identity columns whose hash gives the
    part. ``time`` is the column, in ms or a timestamp, that gives the slot. ``retention_ms`` is the time for which rows
    are kept. Without ``paged`` all rows are in the log.

    ``earlier`` describes the same columns as earlier versions stored them. Those versions stored larger entries, and no
    time, so that no row had expired. An entry has also expired if its last row has the mark ``deletion`` and an older
    ``deletion_time``.
    """

    name: str
    schema: pl.Schema
    identity: tuple[str, ...]
    key: tuple[str, ...]
    time: str | None = None
    retention_ms: int = 0
    paged: bool = True
    earlier: RowsSpec | None = None
    deletion: str | None = None
    deletion_time: str = ""

    def slot_ms(self, shortest_ms: int) -> int:
        """Return the length of a slot in a new checkpoint."""
        return max(self.retention_ms // SLOTS_PER_RETENTION, shortest_ms)

    def times_of(self, rows: pl.DataFrame) -> pl.Series:
        """Return the times of rows in ms."""
        assert self.time is not None
        times = rows[self.time]
        # The end of a window without end is null in columns.
        return times.dt.timestamp("ms").fill_null(_FOREVER_MS) if times.dtype == pl.Datetime else times

    def slots_of(self, rows: pl.DataFrame, slot_ms: int) -> npt.NDArray[np.int64]:
        """Return the slot of each row."""
        if self.time is None:
            return np.full(rows.height, NO_SLOT, dtype=np.int64)
        return self.times_of(rows).to_numpy() // slot_ms

    def parts_of(self, rows: pl.DataFrame, parts: int) -> npt.NDArray[np.int64]:
        """Return the part of each row in a slot with this number of parts."""
        if parts == 1:
            return np.zeros(rows.height, dtype=np.int64)
        return (hashes_of(rows.select(self.key)) & np.uint32(parts - 1)).astype(np.int64)

    def since(self, rows: pl.DataFrame, kept_from_ms: int) -> pl.DataFrame:
        """Return the rows that have not expired."""
        return rows if self.time is None else rows.filter(self.times_of(rows) >= kept_from_ms)

    def without_deletions(self, rows: pl.DataFrame, kept_from_ms: int) -> pl.DataFrame:
        """Return the rows of entries that do not end with a deletion before ``kept_from_ms``.

        ``rows`` must have all rows of its entries. The rows of an entry must be adjacent and in order.
        """
        if self.deletion is None:
            return rows
        is_over = pl.col(self.deletion) & (pl.col(self.deletion_time) < kept_from_ms)
        deleted, identity = rows.filter(is_over), list(self.identity)
        if not deleted.height:
            return rows
        theirs = rows.join(deleted, on=identity, how="semi", nulls_equal=True, maintain_order="left")
        over = theirs.unique(identity, keep="last", maintain_order=True).filter(is_over)
        return rows.join(over, on=identity, how="anti", nulls_equal=True, maintain_order="left")


def split(rows: pl.DataFrame, numbers: npt.NDArray[np.int64]) -> Iterator[tuple[int, pl.DataFrame]]:
    """Divide rows by their numbers, in order."""
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
