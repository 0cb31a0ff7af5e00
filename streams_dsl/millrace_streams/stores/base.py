"""What all stores have in common: a spec, the entries of the current batch's beginning, a few numbers, a commit.

In a stream a store begins a batch without entries in memory: they are ``below``, and are brought by *place*, which is
an entry's key, and where entries have times its key and slot (``millrace_streams.state.pages``). ``want``
brings those of many places at once; what was not announced is brought when it is asked for.

Invariants:

* entries change only through the store's operator, between two commits of one batch;
* ``before`` gives an entry as it was at the last commit, whatever the batch has changed since;
* a place is brought once, before anything in it is read or changed; so nothing brought replaces what the batch changed;
* ``numbers`` (stream times and the like) belong to the operator and are kept with its entries.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final, Literal, NamedTuple, Protocol, TypeAlias

from millrace_streams.layout import Layout

StoreKind: TypeAlias = Literal["key_value", "window", "session", "versioned", "buffer"]
EntryForm: TypeAlias = Literal[
    "row", "records", "subscriptions", "held", "final", "waiting_for_partner", "waiting_for_table"
]
"""What an entry is: a value with its time (of versions: all of them), or what an operator of ours keeps for itself.

``final`` is ``held`` until the end of the key's window.
"""


Place: TypeAlias = Any
"""Where to look for an entry: its key; where entries have times, its key and the slot of its time."""
_BYTES_PER_MISS: Final = 8192
"""To look for one entry costs as much as to bring all entries of so many bytes."""
_MISSES_MIN: Final = 16


class Stored(NamedTuple):
    """A value with the timestamp that it is stored under."""

    value: Any
    timestamp: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreSpec:
    """What a store holds. ``layout`` gives the columns of its keys and values, ``other`` those of a second input.

    ``retention_ms``: how long a window's entry, a session or an old version is kept, counted from the newest one.
    """

    name: str
    kind: StoreKind
    layout: Layout
    retention_ms: int = 0
    form: EntryForm = "row"
    other: Layout | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """What a batch changed in a store: entries by their identity (None: deleted), and the operator's numbers.

    ``touched`` says whether it changed anything.
    """

    entries: dict[Hashable, Any]
    numbers: dict[str, int]
    touched: bool

    def followed_by(self, later: Change) -> Change:
        """Both changes as one."""
        entries = {**self.entries, **later.entries}
        return Change(entries=entries, numbers=later.numbers, touched=self.touched or later.touched)


class Below(Protocol):
    """A store's entries from before the batch, as far as they are not in memory."""

    @property
    def size_bytes(self) -> int:
        """How large they are."""
        ...

    @property
    def slots(self) -> Collection[int]:
        """The slots that entries lie in."""
        ...

    def slot_of(self, time_ms: int) -> int:
        """The slot of a time."""
        ...

    def entries(self, places: Collection[Place], kept_from_ms: int) -> Iterable[tuple[Hashable, Any]]:
        """The entries of places, and maybe some of others, that are not over."""
        ...

    def entries_of_slots(self, slots: Collection[int] | None, kept_from_ms: int) -> Iterable[tuple[Hashable, Any]]:
        """The entries of slots, and maybe some of others; None: of all."""
        ...


@dataclass(slots=True)
class ObjectStore:
    """Base of the stores; entries are Python's objects under hashable identities.

    What is older than ``kept_from_ms`` has been forgotten.
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
        """One of the operator's numbers."""
        return self.numbers.get(name, default)

    def number_before(self, name: str, default: int = -1) -> int:
        """One of the operator's numbers as it was when the batch began."""
        return self._numbers_before.get(name, default)

    def before(self, identity: Hashable) -> Any:
        """An entry as it was when the batch began; None if there was none."""
        if identity in self._undo:
            return self._undo[identity]
        return self.entry(identity)

    def changed(self, identity: Hashable) -> bool:
        """Whether the batch has changed an entry: what it holds now is the batch's own, and may be changed in place."""
        return identity in self._undo

    def commit(self) -> Change:
        """End a batch: what it changed."""
        entries = {identity: self.entry(identity) for identity in self._undo}
        touched = bool(entries) or self.numbers != self._numbers_before
        self._undo.clear()
        self._numbers_before = dict(self.numbers)
        return Change(entries=entries, numbers=dict(self.numbers), touched=touched)

    def entry(self, identity: Hashable) -> Any:
        """The entry as it is now; None if there is none."""
        raise NotImplementedError

    def entries(self) -> Iterator[tuple[Any, Any]]:
        """All entries that may still be read, in the order of their keys' bytes."""
        raise NotImplementedError

    def packed_entries(self) -> Iterator[tuple[Hashable, Any]]:
        """All entries that must be kept, by identity."""
        return self.entries()

    def restore(self, identity: Hashable, entry: Any) -> None:
        """Put an entry back as it was packed (None: it is gone); no change of the batch."""
        raise NotImplementedError

    def lie_over(self, below: Below, numbers: dict[str, int], kept_from_ms: int) -> None:
        """Begin with entries that are not in memory yet, and what else is known from before the batch."""
        self._below, self.numbers, self.kept_from_ms = below, numbers, kept_from_ms
        self._numbers_before = dict(numbers)
        self._misses_left = max(_MISSES_MIN, below.size_bytes // _BYTES_PER_MISS)

    def want(self, places: Iterable[Place]) -> None:
        """Bring the entries of places into memory, all that are not there yet by one look."""
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
        """Bring entries, with what else is in their places."""
        if self._below is not None:
            self.want(map(self.place_of, identities))

    def want_all(self) -> None:
        """Bring all entries into memory."""
        if self._below is not None:
            for identity, entry in self._below.entries_of_slots(None, self.kept_from_ms):
                if self.place_of(identity) not in self._brought:
                    self.restore(identity, entry)
            self._below = None

    def want_between(self, keys: Iterable[Any], first_ms: int, last_ms: int) -> None:
        """Bring the entries of keys that have times from ``first_ms`` to ``last_ms``."""
        if self._below is not None:
            slots = self._slots_between(first_ms, last_ms)
            self.want([(key, slot) for key in keys for slot in slots])

    def place_of(self, identity: Hashable) -> Place:
        """The place of an entry; in stores whose entries have times the pair of its key and slot."""
        return identity

    def _want_between_one(self, key: Any, first_ms: int, last_ms: int) -> None:
        if self._below is not None:
            for slot in self._slots_between(first_ms, last_ms):
                self._want_one((key, slot))

    def _slots_between(self, first_ms: int, last_ms: int) -> list[int]:
        """The slots from one time to another that hold anything."""
        assert self._below is not None
        first, last = self._below.slot_of(first_ms), self._below.slot_of(last_ms)
        return [slot for slot in self._below.slots if first <= slot <= last]

    def _want_slots(self, first_ms: int, last_ms: int) -> None:
        """Bring the entries of all keys that have times from ``first_ms`` to ``last_ms``."""
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
        """Bring a place that was not announced; after many such, everything."""
        if self._below is not None and place not in self._brought:
            self._misses_left -= 1
            if self._misses_left < 0:
                self.want_all()
            else:
                self.want((place,))

    def _remember(self, identity: Hashable, entry: Any) -> None:
        """Keep what an entry was before the batch, at its first change."""
        if identity not in self._undo:
            self._undo[identity] = entry
