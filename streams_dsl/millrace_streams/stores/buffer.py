"""The buffer: entries held back until their time, in order of a time and then of the key.

What is taken out leaves its place in the order empty until enough places are, since closing the gap each time would
cost as much as there are entries. Which entry is the first one, only all of them say: a buffer is brought whole.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Hashable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

from millrace_streams.stores.base import ObjectStore

_EMPTY_MIN: Final = 64
"""So many empty places are not worth to be closed."""


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

    def __len__(self) -> int:
        """How many entries are held back."""
        self.want_all()
        return len(self._entries)

    def put(self, identity: Hashable, entry: Entry) -> None:
        """Hold an entry back; one that is there already keeps its place."""
        self.want_all()
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

    def oldest_ms(self) -> int | None:
        """The time of the first entry."""
        self.want_all()
        return self._order[self._first][0][0] if self._entries else None

    def pop_oldest(self) -> tuple[Any, Any]:
        """Take out the first entry, with its identity."""
        self.want_all()
        _, identity = self._order[self._first]
        return identity, self.remove(identity)

    def remove(self, identity: Hashable) -> Any:
        """Take an entry out, wherever it stands; None if it is not there."""
        self.want_all()
        if identity not in self._entries:
            return None
        self._remember(identity, self._entries[identity])
        return self._take(identity)

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
        self.want_all()
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
