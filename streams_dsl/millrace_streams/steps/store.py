"""Column store of one operator and bucket, with stream time.

Invariants:

* a key (with its window) has one current row; among rows of the same key the last written one is current;
* stream time never decreases;
* rows are dropped only after their window's retention, so every row that a later batch can change exists.

Steps read a store through ``matching`` and return a ``StateDelta`` of whole new rows; they never change it. In a stream
the rows from before the batch are not in memory but ``below``, and are read on demand.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import polars as pl

from millrace_streams.steps.batch import NO_TIMESTAMP
from millrace_streams.steps.window_assignment import newest_start_ms

if TYPE_CHECKING:
    from millrace_streams.state.rows import KeptRows

STREAM_TIME: Final = "stream_time"
"""Name of the number that holds stream time."""
_EARLIEST_MS: Final = -(2**63)


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreSpec:
    """Description of a store.

    ``schema`` has the columns of the rows, and ``key`` names the key columns. ``window`` is the key column with the
    window's start in ms, if there is one. As in Kafka Streams' window stores, a row expires when the newest window
    starts ``retention_ms`` after its own. A window starts every ``advance_ms``.
    """

    name: str
    schema: pl.Schema
    key: tuple[str, ...]
    window: str | None = None
    advance_ms: int = 1
    retention_ms: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class StateDelta:
    """Changes of a batch in a ``Store``.

    ``rows`` are whole rows, the newest of each key. ``stream_time_ms`` is the stream time after the batch.
    """

    rows: pl.DataFrame
    stream_time_ms: int

    def followed_by(self, later: StateDelta, key: Sequence[str]) -> StateDelta:
        """Return both changes as one; of several rows of a ``key`` the later one is kept."""
        rows = pl.concat([self.rows, later.rows]).unique(list(key), keep="last", maintain_order=True)
        return StateDelta(rows=rows, stream_time_ms=later.stream_time_ms)


@dataclass(slots=True)
class Store:
    """The state: the rows ``below``, and later changes over them."""

    spec: StoreSpec
    stream_time_ms: int = NO_TIMESTAMP
    below: KeptRows | None = None
    _parts: list[pl.DataFrame] = field(default_factory=list)

    @property
    def kept_from_ms(self) -> int:
        """First window start within the retention."""
        newest_ms = newest_start_ms(self.stream_time_ms, self.spec.advance_ms)
        return max(newest_ms - self.spec.retention_ms + 1, _EARLIEST_MS)

    def matching(self, keys: pl.DataFrame) -> pl.DataFrame:
        """Return the current rows of these keys (distinct rows of the key columns), in any order."""
        parts = [
            part.join(keys, on=list(self.spec.key), how="semi", nulls_equal=True) for part in self._parts if part.height
        ]
        if self.below is not None:
            slots = self.below.spec.slots_of(keys, self.below.facts.slot_ms)
            kept = self.below.matching(keys, slots, on=self.spec.key, kept_from_ms=self.kept_from_ms)
            parts.insert(0, kept)
        return self._newest(parts)

    def rows(self) -> pl.DataFrame:
        """Return all current rows within the retention."""
        below = [] if self.below is None else [self.below.rows(kept_from_ms=self.kept_from_ms)]
        rows = self._newest([*below, *self._parts])
        return rows if self.spec.window is None else rows.filter(pl.col(self.spec.window) >= self.kept_from_ms)

    def started(self, first_ms: int, limit_ms: int) -> pl.DataFrame:
        """Return the current rows whose windows start from ``first_ms`` and before ``limit_ms``."""
        assert self.spec.window is not None
        within = pl.col(self.spec.window).is_between(first_ms, limit_ms, closed="left")
        parts = [part.filter(within) for part in self._parts]
        if self.below is not None:
            slot_ms = self.below.facts.slot_ms
            slots = [slot for slot in self.below.slots if first_ms // slot_ms <= slot <= (limit_ms - 1) // slot_ms]
            parts.insert(0, self.below.rows(kept_from_ms=first_ms, slots=slots).filter(within))
        return self._newest(parts)

    def apply(self, delta: StateDelta) -> None:
        """Apply the changes of a batch."""
        self.stream_time_ms = max(self.stream_time_ms, delta.stream_time_ms)
        if delta.rows.height:
            self._parts.append(delta.rows)
            # Keep the parts few: each at least twice as large as the next, as in a log-structured store.
            while len(self._parts) > 1 and self._parts[-2].height < 2 * self._parts[-1].height:
                self._parts[-2:] = [self._newest(self._parts[-2:])]

    def _newest(self, parts: list[pl.DataFrame]) -> pl.DataFrame:
        if not parts:
            return pl.DataFrame(schema=self.spec.schema)
        if len(parts) == 1:
            return parts[0]
        return pl.concat(parts).unique(list(self.spec.key), keep="last")
