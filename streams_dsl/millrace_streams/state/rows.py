"""The rows of one store of one bucket as they lie between micro-batches: a log of recent changes over pages.

A batch's changes are appended to the log. When the log has grown beyond what a batch may have to read for nothing, its
rows are spread over the pages that they belong to. A store that stays small never has a page.

Invariants:

* the current rows of an entry are the last ones in the log, or, where the log has none, those in its page;
* nobody sees changes of the batch here: rows are those from before it, until ``save`` ends their use;
* in memory are the log, the pages asked for, and while rows are spread one page's more.
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
"""Marks a row that says that its entry is gone; stores whose entries never go have no such column."""
_NUMBER: Final = "__of_chunk"
_EARLIEST_MS: Final = -(2**63)
_BYTES_PER_CHUNK: Final = 64 << 10
_CHUNKS_MIN: Final = 16
_DELTAS_PER_LOG: Final = 8
_SMALL: Final = 16
"""A batch that changes less than this part of the log is a small one."""
_TURNS: Final = 8
"""Small batches spread this part of the log at a time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """When rows move: what a log may hold in bytes in any case, a page on the average; how short slots may be."""

    log_bytes: int = 256 << 10
    page_bytes: int = 256 << 10
    slot_ms: int = 60_000


LIMITS: Final = Limits()


class _PageRows(NamedTuple):
    """A page in memory: its rows, and how many bytes they were."""

    rows: pl.DataFrame
    size_bytes: int


@dataclass(slots=True)
class KeptRows:
    """Rows as they were when the batch began. Made by ``read``; ``reads`` counts the pages that were asked for."""

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

    @classmethod
    def read(
        cls, spec: RowsSpec, variables: StateVariables, limits: Limits = LIMITS, *, buckets: int | None = None
    ) -> KeptRows:
        """Read the log. ``buckets`` is the number of buckets that keys lie in now, None for whoever only reads.

        Raises ``IncompatibleStateError`` when it is of another version or number of buckets, or of other columns.
        """
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
        if buckets is not None and kept.facts.buckets != buckets:
            raise IncompatibleStateError(
                f"store {spec.name}: its state lies in {kept.facts.buckets} buckets, and there are {buckets} now, as "
                "many as the topic of the most partitions has: begin with a new checkpoint"
            )
        return kept

    @property
    def size_bytes(self) -> int:
        """How many bytes the rows are, packed."""
        return self._log_bytes + sum(slot.size_bytes for slot in self.facts.slots.values())

    @property
    def slots(self) -> list[int]:
        """The slots that rows lie in."""
        found = set(self.facts.slots)
        found.update(np.unique(self.spec.slots_of(self._log, self.facts.slot_ms)).tolist())
        return sorted(found)

    def matching(
        self, wanted: pl.DataFrame, slots: npt.NDArray[np.int64], *, on: Sequence[str], kept_from_ms: int
    ) -> pl.DataFrame:
        """The current rows that have the columns ``on`` in common with a row of ``wanted``.

        ``slots`` are the slots to be looked into, one for each row of ``wanted``, which has the columns of the key.
        Of other slots there may be some rows, or none. Rows before ``kept_from_ms`` are over and left out.
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
        """All current rows, or those of some slots (and maybe of others)."""
        wanted = self.facts.slots if slots is None else [slot for slot in slots if slot in self.facts.slots]
        pages = [self._page(Page(slot, part)).rows for slot in wanted for part in range(self.facts.slots[slot].parts)]
        return self._current([pl.concat([self._empty(), *pages]), self._log], kept_from_ms)

    def save(self, changed: pl.DataFrame, numbers: Mapping[str, int], kept_from_ms: int) -> None:
        """Leave the rows with what a batch changed: whole entries, or marks that they are gone."""
        kept_from_ms = max(kept_from_ms, self.facts.kept_from_ms)
        slots = self._without_old_slots(kept_from_ms)
        facts = replace(self.facts, numbers=numbers, slots=slots, kept_from_ms=kept_from_ms)
        chunk = pack_chunk("delta", changed, facts)
        log_bytes, deltas_bytes = self._log_bytes + len(chunk), self._log_bytes - self._base_bytes + len(chunk)
        if self.spec.paged and log_bytes > self._log_bytes_max(slots, len(chunk)):
            rows, left = self._newest([self._log, changed], kept_from_ms), self._empty()
            if slots and log_bytes <= 2 * self.limits.log_bytes and _SMALL * len(chunk) < log_bytes:
                rows, left = self._fullest(rows, slots)
            slots = self._spread(rows, slots)
            self.variables.replace_log(pack_chunk("base", left, replace(facts, slots=slots)))
        elif 2 * deltas_bytes > self._base_bytes or self._log_chunks >= _CHUNKS_MIN + log_bytes // _BYTES_PER_CHUNK:
            rows = self._newest([self._log, changed], kept_from_ms)
            rows = rows if slots else _there(rows)
            self.variables.replace_log(pack_chunk("base", rows, facts))
        else:
            self.variables.append_to_log(chunk)

    def _log_bytes_max(self, slots: Mapping[int, Slot], delta_bytes: int) -> int:
        """What the log may come to.

        Large batches leave a long one, for they read much of the store anyway, and each spreading writes most pages;
        when small ones follow, it has to be short.
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
        """The rows of the pages that most rows belong to, so that small batches pay in turn; and the others."""
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

    def _spread(self, rows: pl.DataFrame, slots: dict[int, Slot]) -> dict[int, Slot]:
        """Put rows into their pages, of which there may be more then; gives the slots as they are then."""
        spread = dict(slots)
        for number, own in split(rows, self.spec.slots_of(rows, self.facts.slot_ms)):
            slot = slots.get(number, Slot())
            parts = slot.grown(int(own.estimated_size()), self.limits.page_bytes)
            size_bytes = slot.size_bytes
            changed = dict(split(own, self.spec.parts_of(own, slot.parts)))
            for part in sorted(changed) if parts == slot.parts else range(slot.parts):
                size_bytes += self._rewrite(Page(number, part), changed.get(part, self._empty()), slot.parts, parts)
            spread[number] = Slot(parts, size_bytes)
            if not size_bytes:
                del spread[number]
        return spread

    def _rewrite(self, page: Page, changed: pl.DataFrame, parts: int, parts_after: int) -> int:
        """Put changes into a page, and cut it if there are to be more parts; gives by how many bytes they grew."""
        known = self._page(page)
        del self._pages[page]
        rows = _there(_over(known.rows, changed, self.spec.identity))
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
        """The rows of the pages that keys fall into."""
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
        return _there(self._newest(frames, kept_from_ms))

    def _newest(self, frames: Sequence[pl.DataFrame], kept_from_ms: int = _EARLIEST_MS) -> pl.DataFrame:
        """Rows of which the later frames' replace those of the earlier ones."""
        rows = self._empty()
        for frame in frames:
            rows = _over(rows, frame, self.spec.identity)
        return self.spec.since(rows, max(kept_from_ms, self.facts.kept_from_ms))

    def _empty(self) -> pl.DataFrame:
        return pl.DataFrame(schema=self.spec.schema)


def _merged(deltas: Sequence[pl.DataFrame], spec: RowsSpec) -> pl.DataFrame:
    """Many little frames as one: of each entry the rows of the last that has any."""
    whole = pl.concat([pl.DataFrame(schema=spec.schema), *deltas])
    if len(deltas) < 2:
        return whole
    numbers = np.repeat(np.arange(len(deltas)), [delta.height for delta in deltas])
    is_last = (pl.col(_NUMBER) == pl.col(_NUMBER).max()).over(list(spec.identity))
    return whole.with_columns(pl.Series(_NUMBER, numbers)).filter(is_last).drop(_NUMBER)


def _over(rows: pl.DataFrame, newer: pl.DataFrame, identity: Sequence[str]) -> pl.DataFrame:
    if not rows.height or not newer.height:
        return rows if rows.height else newer
    names = list(identity)
    older = rows.join(newer, on=names, how="anti", nulls_equal=True, maintain_order="left")
    return pl.concat([older, newer])


def _there(rows: pl.DataFrame) -> pl.DataFrame:
    """Rows without the marks of entries that are gone."""
    return rows.filter(~pl.col(DELETED)) if DELETED in rows.columns else rows
