"""Stored rows of one store and bucket: a log over pages.

A batch's changes are appended to the log. When the log exceeds its limit, because every batch reads it completely, its
rows are spread over their pages. A small store never has a page.

Invariants:

* the current rows of an entry are its last ones in the log or, without any, those in its page;
* changes of the current batch are not visible here: rows are those from before it, until ``save`` ends their use;
* memory holds the log, the requested pages, and one more page while rows are spread.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt
import polars as pl

from millrace_streams.errors import IncompatibleStateError
from millrace_streams.state.chunks import Facts, pack_chunk, unpack_chunk
from millrace_streams.state.pages import Page, RowsSpec, Slot, split
from millrace_streams.state.variables import StateVariables

DELETED: Final = "__deleted"
"""Column that marks the row of a deleted entry; stores without deletions do not have it."""
_NUMBER: Final = "__of_chunk"
_EARLIEST_MS: Final = -(2**63)
_BYTES_PER_CHUNK: Final = 64 << 10
_CHUNKS_MIN: Final = 16
_DELTAS_PER_LOG: Final = 8
_SMALL: Final = 16
"""A batch is small if it changes less than this part of the log."""
_TURNS: Final = 8
"""Small batches spread this part of the log at a time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Size limits of stored rows.

    ``log_bytes`` limits the log, ``page_bytes`` limits an average page, and ``slot_ms`` is the minimum length of a
    slot.
    """

    log_bytes: int = 256 << 10
    page_bytes: int = 256 << 10
    slot_ms: int = 60_000


LIMITS: Final = Limits()


class _PageRows(NamedTuple):
    """A page in memory: its rows, and their size in bytes."""

    rows: pl.DataFrame
    size_bytes: int


@dataclass(slots=True)
class KeptRows:
    """Rows as of the start of the batch. Made by ``read``; ``reads`` counts the requested pages."""

    spec: RowsSpec
    variables: StateVariables
    limits: Limits
    facts: Facts
    reads: int = 0
    _log: pl.DataFrame = field(init=False)
    _log_chunks: int = 0
    _base_bytes: int = 0
    _log_bytes: int = 0
    _pages: dict[Page, _PageRows] = field(default_factory=dict)
    _earlier_pages: tuple[Page, ...] = ()

    @classmethod
    def read(
        cls, spec: RowsSpec, variables: StateVariables, limits: Limits = LIMITS, *, buckets: int | None = None
    ) -> KeptRows:
        """Read the log. ``buckets`` is the current number of buckets, None for a reader.

        Raises ``IncompatibleStateError`` for another version, number of buckets, or other columns.
        """
        kept = cls._read(spec, variables, limits, buckets)
        if buckets is not None and kept.facts.buckets != buckets:
            raise IncompatibleStateError(
                f"store {spec.name}: its state has {kept.facts.buckets} buckets, but the topology now has {buckets}, "
                "the partitions of its largest topic: start with a new checkpoint"
            )
        if spec.earlier is not None and kept._log_chunks and kept.facts.kept_from_ms == _EARLIEST_MS:
            return cls._read(spec.earlier, variables, limits, buckets)._as_today(spec)
        return kept

    @classmethod
    def _read(cls, spec: RowsSpec, variables: StateVariables, limits: Limits, buckets: int | None) -> KeptRows:
        kept = cls(spec, variables, limits, Facts(buckets=buckets or 1, slot_ms=spec.slot_ms(limits.slot_ms)))
        chunks = []
        for packed in variables.read_log():
            chunk = unpack_chunk(spec.name, spec.schema, packed)
            kept.facts = chunk.facts or kept.facts
            kept._log_bytes += len(packed)
            if chunk.kind == "base":
                kept._base_bytes += len(packed)
            chunks.append(chunk.rows)
        kept._log_chunks = len(chunks)
        kept._log = kept._newest([*chunks[:1], _merged(chunks[1:], spec)])
        return kept

    def _as_today(self, spec: RowsSpec) -> KeptRows:
        """Return the unexpired rows under today's description: all in the log, which the next save spreads.

        The pages are read one by one, because most of their rows may have expired.
        """
        pages = tuple(Page(slot, part) for slot, each in self.facts.slots.items() for part in range(each.parts))
        log, found = _there(self._log), []
        newest_ms = _newest_ms(spec, log, _EARLIEST_MS)
        for page in pages:
            rows = _older(self._page(page).rows, self._log, self.spec.identity)
            del self._pages[page]
            newest_ms = _newest_ms(spec, rows, newest_ms)
            found.append(spec.since(rows, max(newest_ms - spec.retention_ms + 1, _EARLIEST_MS)))
        facts = replace(self.facts, slots={}, slot_ms=spec.slot_ms(self.limits.slot_ms))
        kept = KeptRows(spec, self.variables, self.limits, facts)
        kept._log = spec.since(pl.concat([*found, log]), max(newest_ms - spec.retention_ms + 1, _EARLIEST_MS))
        # Without a base, the next save replaces the log.
        kept._log_chunks, kept._log_bytes = self._log_chunks, int(kept._log.estimated_size())
        kept._earlier_pages = pages
        return kept

    @property
    def size_bytes(self) -> int:
        """Size of the rows in bytes, packed."""
        return self._log_bytes + sum(slot.size_bytes for slot in self.facts.slots.values())

    @property
    def slots(self) -> list[int]:
        """Slots with rows."""
        found = set(self.facts.slots)
        found.update(np.unique(self.spec.slots_of(self._log, self.facts.slot_ms)).tolist())
        return sorted(found)

    def matching(
        self, wanted: pl.DataFrame, slots: npt.NDArray[np.int64], *, on: Sequence[str], kept_from_ms: int
    ) -> pl.DataFrame:
        """Return the current rows whose columns ``on`` match a row of ``wanted``.

        ``slots`` has the slot for each row of ``wanted``, which has the key columns. Rows of other slots may or may not
        be included. Rows before ``kept_from_ms`` have expired and are left out.
        """
        parts = [self._pages_of(wanted.select(self.spec.key), slots), self._log]
        names = list(on)
        found = [
            part.join(wanted, on=names, how="semi", nulls_equal=True, maintain_order="left")
            for part in parts
            if part.height
        ]
        return self._current(found, kept_from_ms)

    def rows(self, *, kept_from_ms: int, slots: Iterable[int] | None = None) -> pl.DataFrame:
        """Return all current rows, or those of some slots (and possibly of others)."""
        wanted = self.facts.slots if slots is None else [slot for slot in slots if slot in self.facts.slots]
        pages = [self._page(Page(slot, part)).rows for slot in wanted for part in range(self.facts.slots[slot].parts)]
        return self._current([pl.concat([self._empty(), *pages]), self._log], kept_from_ms)

    def save(self, changed: pl.DataFrame, numbers: Mapping[str, int], kept_from_ms: int) -> None:
        """Save the changes of a batch: whole entries, or marks of deleted ones."""
        for page in self._earlier_pages:
            self.variables.remove_page(page)
        kept_from_ms = max(kept_from_ms, self.facts.kept_from_ms)
        slots = self._without_old_slots(kept_from_ms)
        facts = replace(self.facts, numbers=numbers, slots=slots, kept_from_ms=kept_from_ms)
        chunk = pack_chunk("delta", changed, facts)
        log_bytes, deltas_bytes = self._log_bytes + len(chunk), self._log_bytes - self._base_bytes + len(chunk)
        if self.spec.paged and log_bytes > self._log_bytes_max(slots, len(chunk)):
            rows, left = self._newest([self._log, changed], kept_from_ms), self._empty()
            if slots and log_bytes <= 2 * self.limits.log_bytes and _SMALL * len(chunk) < log_bytes:
                rows, left = self._fullest(rows, slots)
            slots = self._spread(rows, slots, kept_from_ms)
            self.variables.replace_log(pack_chunk("base", left, replace(facts, slots=slots)))
        elif 2 * deltas_bytes > self._base_bytes or self._log_chunks >= _CHUNKS_MIN + log_bytes // _BYTES_PER_CHUNK:
            rows = self._newest([self._log, changed], kept_from_ms)
            # If there are pages, the log must keep the marks of deleted entries, because the pages still have these.
            rows = rows if slots else self._left(rows, kept_from_ms)
            self.variables.replace_log(pack_chunk("base", rows, facts))
        else:
            self.variables.append_to_log(chunk)

    def _log_bytes_max(self, slots: Mapping[int, Slot], delta_bytes: int) -> int:
        """Return the size limit of the log.

        After large batches the log may be long, because they read much of the store anyway and each spreading writes
        most pages. For small batches it must be short.
        """
        pages_bytes = sum(slot.size_bytes for slot in slots.values())
        return max(self.limits.log_bytes, min(pages_bytes // 2, _DELTAS_PER_LOG * delta_bytes))

    def _without_old_slots(self, kept_from_ms: int) -> dict[int, Slot]:
        slots = dict(self.facts.slots)
        for number in [number for number in slots if (number + 1) * self.facts.slot_ms <= kept_from_ms]:
            if self.spec.time is not None:
                for part in range(slots.pop(number).parts):
                    self.variables.remove_page(Page(number, part))
        return slots

    def _fullest(self, rows: pl.DataFrame, slots: Mapping[int, Slot]) -> tuple[pl.DataFrame, pl.DataFrame]:
        """Return the rows of the pages with the most rows, and the other rows.

        Small batches share the cost of spreading the log, because each spreads only such pages.
        """
        numbers = self.spec.slots_of(rows, self.facts.slot_ms)
        parts = np.zeros(rows.height, dtype=np.int64)
        for number in np.unique(numbers).tolist():
            own = numbers == number
            parts[own] = self.spec.parts_of(rows.filter(own), slots.get(number, Slot()).parts)
        pages = pl.DataFrame({"slot": numbers, "part": parts})
        sizes = pages.group_by("slot", "part").len("rows").sort("rows", "slot", "part", descending=True)
        chosen = sizes.filter(pl.col("rows").cum_sum() - pl.col("rows") < rows.height / _TURNS)
        within = pages.join(chosen.with_columns(chosen=True), on=["slot", "part"], how="left", maintain_order="left")
        is_chosen = within["chosen"].fill_null(False)
        return rows.filter(is_chosen), rows.filter(~is_chosen)

    def _spread(self, rows: pl.DataFrame, slots: dict[int, Slot], kept_from_ms: int) -> dict[int, Slot]:
        """Spread rows over their pages, with more parts if needed; returns the new slots."""
        spread = dict(slots)
        for number, own in split(rows, self.spec.slots_of(rows, self.facts.slot_ms)):
            slot = slots.get(number, Slot())
            parts = slot.grown(int(own.estimated_size()), self.limits.page_bytes)
            size_bytes = slot.size_bytes
            changed = dict(split(own, self.spec.parts_of(own, slot.parts)))
            for part in sorted(changed) if parts == slot.parts else range(slot.parts):
                page = Page(number, part)
                merged = _over(self._page(page).rows, changed.get(part, self._empty()), self.spec.identity)
                size_bytes += self._rewrite(page, self._left(merged, kept_from_ms), slot.parts, parts)
            spread[number] = Slot(parts, size_bytes)
            if not size_bytes:
                del spread[number]
        return spread

    def _rewrite(self, page: Page, rows: pl.DataFrame, parts: int, parts_after: int) -> int:
        """Write the new rows of a page, and divide it if the slot gets more parts; returns the growth in bytes."""
        known = self._pages.pop(page)
        grown_bytes = -known.size_bytes
        cut = {page.part: rows} if rows.height else {}
        if parts_after > parts:
            cut = dict(split(rows, self.spec.parts_of(rows, parts_after)))
        for part in range(page.part, parts_after, parts):
            if part in cut:
                chunk = pack_chunk("page", cut[part])
                self.variables.write_page(Page(page.slot, part), chunk)
                grown_bytes += len(chunk)
            elif part == page.part and known.size_bytes:
                self.variables.remove_page(page)
        return grown_bytes

    def _pages_of(self, keys: pl.DataFrame, slots: npt.NDArray[np.int64]) -> pl.DataFrame:
        """Return the rows of the pages of these keys."""
        found = [self._empty()]
        for number in np.unique(slots).tolist():
            if number in self.facts.slots:
                parts = self.facts.slots[number].parts
                for part in np.unique(self.spec.parts_of(keys.filter(slots == number), parts)).tolist():
                    found.append(self._page(Page(number, part)).rows)
        return pl.concat(found)

    def _page(self, page: Page) -> _PageRows:
        if page not in self._pages:
            self.reads += 1
            chunk = self.variables.read_page(page)
            rows = self._empty() if chunk is None else unpack_chunk(self.spec.name, self.spec.schema, chunk).rows
            self._pages[page] = _PageRows(rows, len(chunk or b""))
        return self._pages[page]

    def _current(self, frames: Sequence[pl.DataFrame], kept_from_ms: int) -> pl.DataFrame:
        return self._left(self._newest(frames, kept_from_ms), max(kept_from_ms, self.facts.kept_from_ms))

    def _left(self, rows: pl.DataFrame, kept_from_ms: int) -> pl.DataFrame:
        """Return the rows of entries that are neither deleted nor over; no page may have older rows of them."""
        return self.spec.without_deletions(_there(rows), kept_from_ms)

    def _newest(self, frames: Sequence[pl.DataFrame], kept_from_ms: int = _EARLIEST_MS) -> pl.DataFrame:
        """Return rows in which entries of later frames replace those of earlier ones."""
        rows = self._empty()
        for frame in frames:
            rows = _over(rows, frame, self.spec.identity)
        return self.spec.since(rows, max(kept_from_ms, self.facts.kept_from_ms))

    def _empty(self) -> pl.DataFrame:
        return pl.DataFrame(schema=self.spec.schema)


def _merged(deltas: Sequence[pl.DataFrame], spec: RowsSpec) -> pl.DataFrame:
    """Merge many small frames into one: of each entry the rows of the last frame that has it."""
    whole = pl.concat([pl.DataFrame(schema=spec.schema), *deltas])
    if len(deltas) < 2:
        return whole
    numbers = np.repeat(np.arange(len(deltas)), [delta.height for delta in deltas])
    is_last = (pl.col(_NUMBER) == pl.col(_NUMBER).max()).over(list(spec.identity))
    return whole.with_columns(pl.Series(_NUMBER, numbers)).filter(is_last).drop(_NUMBER)


def _over(rows: pl.DataFrame, newer: pl.DataFrame, identity: Sequence[str]) -> pl.DataFrame:
    if not rows.height or not newer.height:
        return rows if rows.height else newer
    return pl.concat([_older(rows, newer, identity), newer])


def _older(rows: pl.DataFrame, newer: pl.DataFrame, identity: Sequence[str]) -> pl.DataFrame:
    """Return the rows of entries that have no newer rows."""
    return rows.join(newer, on=list(identity), how="anti", nulls_equal=True, maintain_order="left")


def _newest_ms(spec: RowsSpec, rows: pl.DataFrame, known_ms: int) -> int:
    """Return the largest time of rows, at least the one that is known; it stays the same for rows without a time."""
    if spec.time is None or not rows.height:
        return known_ms
    return max(known_ms, int(spec.times_of(rows).to_numpy().max()))


def _there(rows: pl.DataFrame) -> pl.DataFrame:
    """Return rows without the marks of deleted entries."""
    return rows.filter(~pl.col(DELETED)) if DELETED in rows.columns else rows
