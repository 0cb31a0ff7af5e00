"""Entries of a store in stored rows (``millrace_streams.state``), decoded on demand."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa

from millrace_streams.frames.codec import key_columns_of
from millrace_streams.layout import WINDOW_COLUMNS, WINDOW_END, Layout
from millrace_streams.state.pages import NO_SLOT, RowsSpec
from millrace_streams.state.rows import KeptRows
from millrace_streams.stores.base import Place, StoreSpec
from millrace_streams.stores.forms import NOTHING, START, TIME, Entries, Form, Part, form_of


def _time_of(spec: StoreSpec) -> str | None:
    """Return the column by which an entry expires, None if its key does not determine the time."""
    if spec.kind == "window":
        return START
    if spec.kind == "records":
        return TIME
    return WINDOW_END if spec.kind == "session" or spec.form == "final" else None


@lru_cache(maxsize=256)
def rows_of(spec: StoreSpec) -> RowsSpec:
    """Return the description of the rows of a store's entries.

    A buffer needs its oldest entries first. So a part of them is useful, and paged, only if keys determine the order.
    """
    form = form_of(spec)
    identity = [name for part in form.parts[: len(form.identity(None))] for name in _key_columns(part)]
    paged = spec.kind != "buffer" or spec.form == "final"
    rows = RowsSpec(
        name=spec.name,
        schema=form.frame([]).schema,
        identity=tuple(identity),
        key=_keys_of(spec, form).key_columns if paged else tuple(identity),
        time=_time_of(spec),
        retention_ms=spec.retention_ms,
        paged=paged,
    )
    if spec.kind == "versioned":
        return replace(rows, deletion=NOTHING, deletion_time=TIME)
    if spec.kind not in ("records", "subscriptions"):
        return rows
    # An entry of earlier versions had all records, or all subscriptions, of a key.
    return replace(rows, earlier=replace(rows, identity=rows.key, time=None))


@dataclass(frozen=True)
class EntriesBelow:
    """Stored entries of one store of one bucket."""

    spec: StoreSpec
    kept: KeptRows

    @property
    def size_bytes(self) -> int:
        """Size in bytes."""
        return self.kept.size_bytes

    @cached_property
    def slots(self) -> list[int]:
        """Slots with entries."""
        return self.kept.slots

    def slot_of(self, time_ms: int) -> int:
        """Return the slot of a time."""
        return time_ms // self.kept.facts.slot_ms

    def entries(self, places: Collection[Place], kept_from_ms: int) -> Iterable[tuple[Any, Any]]:
        """Return the unexpired entries of places, and possibly some of others."""
        keys: list[Any] = list(places)
        slots = np.full(len(keys), NO_SLOT, dtype=np.int64)
        if self.kept.spec.time is not None:
            slots = np.asarray([slot for _, slot in keys], dtype=np.int64)
            keys = [key for key, _ in keys]
        wanted = pl.DataFrame(key_columns_of(self._keys, keys))
        return self._form.entries(self.kept.matching(wanted, slots, on=self.kept.spec.key, kept_from_ms=kept_from_ms))

    def entries_of_slots(self, slots: Collection[int] | None, kept_from_ms: int) -> Iterable[tuple[Any, Any]]:
        """Return the entries of slots (None: all), and possibly some of others."""
        return self._form.entries(self.kept.rows(kept_from_ms=kept_from_ms, slots=slots))

    @cached_property
    def _form(self) -> Form:
        return form_of(self.spec)

    @cached_property
    def _keys(self) -> Layout:
        return _keys_of(self.spec, self._form)


def packed(spec: StoreSpec, entries: Entries) -> pl.DataFrame:
    """Encode entries as rows; an entry of None is a mark of its deletion."""
    return form_of(spec).frame(entries)


def _keys_of(spec: StoreSpec, form: Form) -> Layout:
    """Return the layout of the keys for look-ups of entries."""
    layout = next(part.layout for part in form.parts if part.layout is not None)
    if _time_of(spec) != WINDOW_END:
        return layout
    kept = [column for column in layout.schema if column.name not in WINDOW_COLUMNS]
    return replace(layout, schema=pa.schema(kept), windowed=False)


def _key_columns(part: Part) -> list[str]:
    if part.layout is None:
        return [part.prefix + part.name]
    return [part.prefix + name for name in part.layout.key_columns]
