"""Common base of stores: description, entries of the current batch, numbers, commit.

In a stream a store starts a batch without entries in memory. They are ``below`` and are loaded by *place*. A place is
an entry's key; if entries have times, it is the key and the slot (``millrace_streams.state.pages``). ``want`` loads
many places at once. A place that was not prefetched is loaded on use.

Invariants:

* entries change only through the store's operator, between two commits of one batch;
* ``before`` returns an entry as of the last commit, whatever the batch has changed since;
* a place is loaded once, before anything in it is read or changed, so a load never replaces a change of the batch;
* ``numbers`` (stream times and similar) belong to the operator and are stored with its entries.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Hashable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any, Final, Literal, NamedTuple, Protocol, TypeAlias

import pyarrow as pa

from millrace_streams.layout import WINDOW_COLUMNS, Layout

StoreKind: TypeAlias = Literal["key_value", "window", "session", "versioned", "records", "subscriptions", "buffer"]
EntryForm: TypeAlias = Literal[
    "row", "records", "subscriptions", "held", "final", "waiting_for_partner", "waiting_for_table"
]
"""Content of an entry: a value with its time (or all versions), or the private data of an operator.

``final`` is ``held`` until the end of the key's window.
"""


Place: TypeAlias = Any
"""Place of an entry: its key; if entries have times, its key and the slot of its time."""
_BYTES_PER_MISS: Final = 8192
"""The look-up of one entry costs as much as loading all entries of this many bytes."""
_MISSES_MIN: Final = 16


class Stored(NamedTuple):
    """A value with the timestamp under which it is stored."""

    value: Any
    timestamp: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreSpec:
    """Description of a store. ``layout`` has the columns of keys and values, ``other`` those of a second input.

    ``retention_ms`` is the time for which a window's entry, a session, an old version or a record is kept, from the
    newest one on.
    """

    name: str
    kind: StoreKind
    layout: Layout
    retention_ms: int = 0
    form: EntryForm = "row"
    other: Layout | None = None

    @property
    def entry_layout(self) -> Layout:
        """Layout of an entry's key and value. The start of a window is stored beside them."""
        if self.kind != "window":
            return self.layout
        kept = [column for column in self.layout.schema if column.name not in WINDOW_COLUMNS]
        return replace(self.layout, schema=pa.schema(kept), windowed=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """Changes of a batch in one store.

    ``entries`` has the changed entries by identity, None for a deleted one. ``numbers`` are the operator's numbers.
    ``touched`` is true if anything changed.
    """

    entries: dict[Hashable, Any]
    numbers: dict[str, int]
    touched: bool

    def followed_by(self, later: Change) -> Change:
        """Return both changes as one."""
        entries = {**self.entries, **later.entries}
        return Change(entries=entries, numbers=later.numbers, touched=self.touched or later.touched)


class Below(Protocol):
    """A store's entries from before the batch that are not in memory."""

    @property
    def size_bytes(self) -> int:
        """Size in bytes."""
        ...

    @property
    def slots(self) -> Collection[int]:
        """Slots with entries."""
        ...

    def slot_of(self, time_ms: int) -> int:
        """Return the slot of a time."""
        ...

    def entries(self, places: Collection[Place], kept_from_ms: int) -> Iterable[tuple[Hashable, Any]]:
        """Return the unexpired entries of places, and possibly some of others."""
        ...

    def entries_of_slots(self, slots: Collection[int] | None, kept_from_ms: int) -> Iterable[tuple[Hashable, Any]]:
        """Return the entries of slots (None: all), and possibly some of others."""
        ...


@dataclass(slots=True)
class ObjectStore(ABC):
    """Base of the stores.

    Entries are Python objects under hashable identities. Entries older than ``kept_from_ms`` have been removed.
    """

    spec: StoreSpec
    numbers: dict[str, int] = field(default_factory=dict)
    kept_from_ms: int = -(2**63)
    _below: Below | None = None
    _brought: set[Place] = field(default_factory=set)
    _whole_slots: set[int] = field(default_factory=set)
    _misses_left: int = 0
    _undo: dict[Hashable, Any] = field(default_factory=dict)
    _numbers_before: dict[str, int] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """Name of the store."""
        return self.spec.name

    def number(self, name: str, default: int = -1) -> int:
        """Return a number of the operator."""
        return self.numbers.get(name, default)

    def number_before(self, name: str) -> int:
        """Return a number of the operator as of the start of the batch, or -1."""
        return self._numbers_before.get(name, -1)

    def before(self, identity: Hashable) -> Any:
        """Return an entry as of the start of the batch; None if there was none."""
        if identity in self._undo:
            return self._undo[identity]
        return self.entry(identity)

    def commit(self) -> Change:
        """End a batch; returns its changes."""
        entries = {identity: self.entry(identity) for identity in self._undo}
        touched = bool(entries) or self.numbers != self._numbers_before
        self._undo.clear()
        self._numbers_before = dict(self.numbers)
        return Change(entries=entries, numbers=dict(self.numbers), touched=touched)

    @abstractmethod
    def entry(self, identity: Hashable) -> Any:
        """Return the current entry; None if there is none."""

    @abstractmethod
    def entries(self) -> Iterator[tuple[Any, Any]]:
        """Return all readable entries, in byte order of their keys."""

    def packed_entries(self) -> Iterator[tuple[Hashable, Any]]:
        """Return all entries that must be kept, by identity."""
        return self.entries()

    @abstractmethod
    def restore(self, identity: Hashable, entry: Any) -> None:
        """Restore a stored entry, which is no change of the batch."""

    def lie_over(self, below: Below, numbers: dict[str, int], kept_from_ms: int) -> None:
        """Start over entries that are not in memory yet, with the other data from before the batch."""
        self._below, self.numbers, self.kept_from_ms = below, numbers, kept_from_ms
        self._numbers_before = dict(numbers)
        self._misses_left = max(_MISSES_MIN, below.size_bytes // _BYTES_PER_MISS)

    def want(self, places: Iterable[Place]) -> None:
        """Load the entries of places into memory with one look-up."""
        if self._below is None:
            return
        missing = set(places) - self._brought
        if missing:
            place_of, restore = self.place_of, self.restore
            for identity, entry in self._below.entries(missing, self.kept_from_ms):
                if place_of(identity) in missing:
                    restore(identity, entry)
            self._brought |= missing

    def want_entries(self, identities: Iterable[Hashable]) -> None:
        """Load entries, with everything in their places."""
        if self._below is not None:
            self.want(map(self.place_of, identities))

    def want_all(self) -> None:
        """Load all entries into memory."""
        if self._below is not None:
            for identity, entry in self._below.entries_of_slots(None, self.kept_from_ms):
                if self.place_of(identity) not in self._brought:
                    self.restore(identity, entry)
            self._below = None

    def want_between(self, keys: Iterable[Any], first_ms: int, last_ms: int) -> None:
        """Load the entries of keys with times from ``first_ms`` to ``last_ms``."""
        if self._below is not None:
            slots = self._slots_between(first_ms, last_ms)
            self.want([(key, slot) for key in keys for slot in slots])

    def place_of(self, identity: Hashable) -> Place:
        """Return the place of an entry; in stores whose entries have times the pair of key and slot."""
        return identity

    def _want_between_one(self, key: Any, first_ms: int, last_ms: int) -> None:
        if self._below is not None:
            for slot in self._slots_between(first_ms, last_ms):
                self._want_one((key, slot))

    def _slots_between(self, first_ms: int, last_ms: int) -> list[int]:
        """Return the non-empty slots from one time to another."""
        assert self._below is not None
        first, last = self._below.slot_of(first_ms), self._below.slot_of(last_ms)
        return [slot for slot in self._below.slots if first <= slot <= last]

    def _want_slots(self, first_ms: int, last_ms: int) -> None:
        """Load the entries of all keys with times from ``first_ms`` to ``last_ms``."""
        if self._below is None:
            return
        slots = set(self._slots_between(first_ms, last_ms)) - self._whole_slots
        if not slots:
            return
        found = list(self._below.entries_of_slots(slots, self.kept_from_ms))
        within = {place for identity, _ in found if (place := self.place_of(identity))[1] in slots} - self._brought
        for identity, entry in found:
            if self.place_of(identity) in within:
                self.restore(identity, entry)
        self._brought |= within
        self._whole_slots |= slots

    def _want_one(self, place: Place) -> None:
        """Load a place that was not prefetched; after many of them, load all entries."""
        if place not in self._brought:
            self._misses_left -= 1
            if self._misses_left < 0:
                self.want_all()
            else:
                self.want((place,))

    def _remember(self, identity: Hashable, entry: Any) -> None:
        """Remember an entry as of the start of the batch, at its first change."""
        if identity not in self._undo:
            self._undo[identity] = entry


@dataclass(slots=True)
class ExpiringStore(ObjectStore):
    """Base of the stores of windows, sessions and records.

    Entries expire when newer entries come. If other operators look entries up (``looked_up``), expired entries are
    removed only at the end of a batch. The reason is that an operator may read one as of an earlier record.
    """

    looked_up: bool = False
    _expired_until_ms: int = -(2**63)

    @property
    @abstractmethod
    def oldest_ms(self) -> int:
        """Earliest readable time of an entry."""

    def expire(self, *, until_ms: int | None = None) -> None:
        """Remove the entries that are no longer readable, at most those older than ``until_ms``."""
        limit_ms = self.oldest_ms if until_ms is None else min(until_ms, self.oldest_ms)
        if self.looked_up:
            self._expired_until_ms = limit_ms
        else:
            self._remove_until(limit_ms)

    def commit(self) -> Change:
        """End a batch; returns its changes."""
        if self._expired_until_ms > self.kept_from_ms:
            self._remove_until(self._expired_until_ms)
        return ObjectStore.commit(self)

    def _remove_until(self, limit_ms: int) -> None:
        self.kept_from_ms = max(self.kept_from_ms, limit_ms)
        self._remove_older(limit_ms)

    @abstractmethod
    def _remove_older(self, limit_ms: int) -> None:
        """Remove the entries in memory that are older than a time."""
