"""Buffer: entries held until their time, ordered by time and then key.

A removed entry leaves an empty place in the order. The buffer closes empty places only when there are enough of them,
because closing each one would take time proportional to the number of entries.

Finding the first entry requires all entries, so a buffer is loaded completely. If entries wait for the end of their
key's window, later windows are not loaded.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Hashable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final, Protocol, cast

from millrace_streams.stores.base import ObjectStore, Place
from millrace_streams.windows import Windowed

_EMPTY_MIN: Final = 64
"""Number of empty places that is not worth closing."""
_EARLIEST_MS: Final = -(2**63)


class Entry(Protocol):
    """Entry of a buffer, which knows its place."""

    @property
    def place(self) -> tuple[Any, ...]:
        """Time of the entry, and the order among entries of one time."""
        ...


@dataclass(slots=True)
class TimeBuffer(ObjectStore):
    """Entries by identity, ordered by place.

    Entries with equal places are in order of arrival.
    """

    _entries: dict[Any, Any] = field(default_factory=dict)
    _place_of: dict[Any, tuple[Any, ...]] = field(default_factory=dict)
    _order: list[tuple[tuple[Any, ...], Any]] = field(default_factory=list)
    _first: int = 0
    _brought_until_ms: int = _EARLIEST_MS

    def __len__(self) -> int:
        """Return the number of entries."""
        self.want_all()
        return len(self._entries)

    def put(self, identity: Hashable, entry: Entry) -> None:
        """Add an entry, or replace one, which keeps its place."""
        self._want_entry(identity)
        self._remember(identity, self._entries.get(identity))
        if identity in self._entries:
            self._entries[identity] = entry
        else:
            self._insert(identity, entry)

    def restore(self, identity: Hashable, entry: Any) -> None:
        """Restore an entry at its stored place, because it may have left and returned since the one in memory."""
        self._take(identity)
        self._insert(identity, entry)

    def _insert(self, identity: Hashable, entry: Entry) -> None:
        self._place_of[identity] = entry.place
        insort(self._order, (self._place_of[identity], identity), lo=self._first, key=_place)
        self._entries[identity] = entry

    def want_entries(self, identities: Iterable[Hashable]) -> None:
        """Load entries, with everything in their places; load all if keys have no time."""
        if self._timed:
            ObjectStore.want_entries(self, identities)
        else:
            self.want_all()

    def place_of(self, identity: Hashable) -> Place:
        """Return the key and the slot of its window's end, or the identity if keys have no time."""
        if not self._timed:
            return identity
        key, _, end = cast("Windowed", identity)
        assert self._below is not None
        return (key, self._below.slot_of(end))

    def oldest_ms(self, until_ms: int | None = None) -> int | None:
        """Return the time of the first entry; if it is after ``until_ms``, possibly that of a later one."""
        if until_ms is None or not self._timed:
            self.want_all()
        elif until_ms > self._brought_until_ms:
            self._want_slots(_EARLIEST_MS, until_ms)
            self._brought_until_ms = until_ms
        return self._order[self._first][0][0] if self._entries else None

    def pop_oldest(self) -> tuple[Any, Any]:
        """Remove the first entry, whose time ``oldest_ms`` returned, and return it with its identity."""
        _, identity = self._order[self._first]
        return identity, self.remove(identity)

    def remove(self, identity: Hashable) -> Any:
        """Remove an entry at any place and return it; None if it is missing."""
        self._want_entry(identity)
        if identity not in self._entries:
            return None
        self._remember(identity, self._entries[identity])
        return self._take(identity)

    @property
    def _timed(self) -> bool:
        """True if the identity has the time until which an entry waits."""
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
        """Return whether an entry is still at its place; an identity that returned has another one."""
        return self._place_of.get(item[1]) is item[0]

    def entry(self, identity: Hashable) -> Any:
        """Return the entry of an identity."""
        self._want_entry(identity)
        return self._entries.get(identity)

    def entries(self) -> Iterator[tuple[Any, Any]]:
        """Yield all entries in order; the buffer must not change meanwhile."""
        self.want_all()
        for at in range(self._first, len(self._order)):
            item = self._order[at]
            if self._holds(item):
                yield item[1], self._entries[item[1]]


def _place(item: tuple[tuple[Any, ...], Any]) -> tuple[Any, ...]:
    return item[0]
