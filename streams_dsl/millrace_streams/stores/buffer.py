"""The buffer: entries held back until their time, in order of a time and then of the key.

What is taken out leaves its place in the order empty until enough places are, since closing the gap each time would
cost as much as there are entries.

Which entry is the first one, only all of them say, so a buffer is brought whole; but where entries wait for the end of
their key's window, those that wait longer are not needed.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Hashable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final, Protocol, cast

from millrace_streams.stores.base import ObjectStore, Place
from millrace_streams.windows import Windowed

_EMPTY_MIN: Final = 64
"""So many empty places are not worth to be closed."""
_EARLIEST_MS: Final = -(2**63)


class Entry(Protocol):
    """What a buffer holds back: it knows its place."""

    @property
    def place(self) -> tuple[Any, ...]:
        """Its time, and what orders entries of one time."""
        ...


@dataclass(slots=True)
class TimeBuffer(ObjectStore):
    """Entries by an identity, in order of their places; those of equal place in order of arrival."""

    _entries: dict[Any, Any] = field(default_factory=dict)
    _place_of: dict[Any, tuple[Any, ...]] = field(default_factory=dict)
    _order: list[tuple[tuple[Any, ...], Any]] = field(default_factory=list)
    _first: int = 0
    _brought_until_ms: int = _EARLIEST_MS

    def __len__(self) -> int:
        """How many entries are held back."""
        self.want_all()
        return len(self._entries)

    def put(self, identity: Hashable, entry: Entry) -> None:
        """Hold an entry back; one that is there already keeps its place."""
        self._want_entry(identity)
        self._remember(identity, self._entries.get(identity))
        if identity in self._entries:
            self._entries[identity] = entry
        else:
            self._insert(identity, entry)

    def restore(self, identity: Hashable, entry: Any) -> None:
        """Put an entry back, in its own place: it may have left and come back since the one that is there."""
        self._take(identity)
        if entry is not None:
            self._insert(identity, entry)

    def _insert(self, identity: Hashable, entry: Entry) -> None:
        self._place_of[identity] = entry.place
        insort(self._order, (self._place_of[identity], identity), lo=self._first, key=_place)
        self._entries[identity] = entry

    def want_entries(self, identities: Iterable[Hashable]) -> None:
        """Bring entries, with what else is in their places; where keys tell no time, everything."""
        if self._timed:
            ObjectStore.want_entries(self, identities)
        else:
            self.want_all()

    def place_of(self, identity: Hashable) -> Place:
        """The key, and the slot of its window's end; or the identity, where keys tell no time."""
        if not self._timed:
            return identity
        key, _, end = cast("Windowed", identity)
        assert self._below is not None
        return (key, self._below.slot_of(end))

    def oldest_ms(self, until_ms: int | None = None) -> int | None:
        """The time of the first entry; if that is after ``until_ms``, maybe that of a later one."""
        if until_ms is None or not self._timed:
            self.want_all()
        elif until_ms > self._brought_until_ms:
            self._want_slots(_EARLIEST_MS, until_ms)
            self._brought_until_ms = until_ms
        return self._order[self._first][0][0] if self._entries else None

    def pop_oldest(self) -> tuple[Any, Any]:
        """Take out the first entry, with its identity: that whose time was asked for."""
        _, identity = self._order[self._first]
        return identity, self.remove(identity)

    def remove(self, identity: Hashable) -> Any:
        """Take an entry out, wherever it stands; None if it is not there."""
        self._want_entry(identity)
        if identity not in self._entries:
            return None
        self._remember(identity, self._entries[identity])
        return self._take(identity)

    @property
    def _timed(self) -> bool:
        """Whether the identity tells the time until which an entry waits."""
        return self.spec.form == "final"

    def _want_entry(self, identity: Hashable) -> None:
        if self._below is not None and identity not in self._entries:
            if self._timed:
                self._want_one(self.place_of(identity))
            else:
                self.want_all()

    def _take(self, identity: Hashable) -> Any:
        if identity not in self._entries:
            return None
        del self._place_of[identity]
        entry = self._entries.pop(identity)
        while self._first < len(self._order) and not self._holds(self._order[self._first]):
            self._first += 1
        if len(self._order) > 2 * len(self._entries) + _EMPTY_MIN:
            self._order = [item for item in self._order if self._holds(item)]
            self._first = 0
        return entry

    def _holds(self, item: tuple[tuple[Any, ...], Any]) -> bool:
        """Whether an entry still stands in its place: an identity that came back has another one."""
        return self._place_of.get(item[1]) is item[0]

    def entry(self, identity: Hashable) -> Any:
        """The entry of an identity."""
        self._want_entry(identity)
        return self._entries.get(identity)

    def entries(self) -> Iterator[tuple[Any, Any]]:
        """All entries in their order; nothing may be changed meanwhile."""
        self.want_all()
        for at in range(self._first, len(self._order)):
            item = self._order[at]
            if self._holds(item):
                yield item[1], self._entries[item[1]]


def _place(item: tuple[tuple[Any, ...], Any]) -> tuple[Any, ...]:
    return item[0]
