"""Views of tables' stores for processors, which can read them.

The operator of a table has run over the whole batch before the processor. So a view begins with the rows from before
the batch, and takes over the table's changes as their turns come.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from millrace_streams.frames.cells import CellConversion
from millrace_streams.frames.codec import keys_of
from millrace_streams.layout import Layout
from millrace_streams.serdes import sort_key
from millrace_streams.steps.joins import VersionsView
from millrace_streams.steps.operator import State
from millrace_streams.steps.process_stores import KeyValueReads
from millrace_streams.steps.store import Store
from millrace_streams.stores import VersionedRecord, VersionedStore
from millrace_streams.stores.base import Stored


class TableReads(ABC):
    """Base of the views of tables' stores. ``name`` is the name of the table's store."""

    name: str

    @abstractmethod
    def begin(self, keys: Iterable[Any]) -> None:
        """Begin a batch, and fetch the rows of these keys; the batch changes no others."""

    @abstractmethod
    def roll(self, key: Any, value: Any, time_ms: int) -> None:
        """Apply a change."""

    def __getattr__(self, name: str) -> Any:
        """Raise ``AttributeError``, because processors cannot write a table."""
        if name == "name" or name.startswith("__"):  # copies and pickles look for these in objects without fields
            raise AttributeError(f"{type(self).__name__} has no {name}", name=name, obj=self)
        raise AttributeError(f"the store {self.name} is a table's, which a processor only reads: it has no {name}()")


@dataclass(slots=True)
class TableRows(KeyValueReads, TableReads):
    """Rows of a table by key, without their timestamps.

    ``store`` is where the stage keeps them. ``_known`` has the rows that were fetched or changed in this batch, None
    for missing ones.
    """

    name: str
    store: str
    layout: Layout
    convert: CellConversion
    state: State
    _known: dict[Any, Stored | None] = field(default_factory=dict)

    def begin(self, keys: Iterable[Any]) -> None:
        """Begin a batch, and fetch the rows of these keys; the batch changes no others."""
        self._known = {}
        self._fetch(keys)

    def roll(self, key: Any, value: Any, time_ms: int) -> None:
        """Apply a change."""
        self._known[key] = None if value is None else Stored(value, time_ms)

    def get(self, key: Any) -> Any:
        """Return the value of a key; None if there is none."""
        if key is None:
            return None
        key = self.convert(key)
        self._fetch([key])
        stored = self._known[key]
        return None if stored is None else stored.value

    def approximate_num_entries(self) -> int:
        """Return the number of keys, which is exact."""
        unknown = sum(key not in self._known for key in self._stored_keys())
        return unknown + sum(stored is not None for stored in self._known.values())

    def _name(self) -> str:
        return self.name

    def _fetch(self, keys: Iterable[Any]) -> None:
        """Fetch the rows of keys that are not known yet with one look-up."""
        wanted = [key for key in dict.fromkeys(keys) if key not in self._known]
        if wanted:
            self._known.update(dict.fromkeys(wanted))
            self._known.update(self.state.rows_before(self.store, wanted))

    def _between(self, low: Any, high: Any) -> list[tuple[Any, Any]]:
        first, last = (None if bound is None else sort_key(self.convert(bound)) for bound in (low, high))
        self._fetch(self._stored_keys())
        rows = self._known
        ordered = sorted((sort_key(key), key) for key, stored in rows.items() if stored is not None)
        return [
            (key, stored.value)
            for place, key in ordered
            if (first is None or place >= first) and (last is None or place <= last) and (stored := rows[key])
        ]

    def _stored_keys(self) -> list[Any]:
        store = self.state.stores[self.store]
        if isinstance(store, Store):
            return keys_of(self.layout, store.rows())
        return [key for key, _ in store.entries()]


@dataclass(slots=True)
class TableVersions(TableReads):
    """Versions of a table's rows by key."""

    name: str
    convert: CellConversion
    store: VersionedStore
    _changing: VersionsView = field(default_factory=lambda: VersionsView({}))

    def begin(self, keys: Iterable[Any]) -> None:
        """Begin a batch, and fetch the versions of these keys; the batch changes no others."""
        self._changing = VersionsView.of_store(self.store, dict.fromkeys(keys))

    def roll(self, key: Any, value: Any, time_ms: int) -> None:
        """Apply a change."""
        self._changing.roll(key, value, time_ms)

    def get(self, key: Any, as_of: int | None = None) -> VersionedRecord | None:
        """Return the current version, or the one as of a time."""
        if key is None:
            return None
        view, key = self._changing, self.convert(key)
        versions = view.versions[key] if key in view.versions else self.store.before(key)
        stored = None if versions is None else versions.get(as_of, view.newest_ms - view.history_ms)
        return None if stored is None else VersionedRecord(stored.value, stored.timestamp)
