"""The buffer: entries held back until their time, in order of a time and then of the key."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Hashable, Iterator
from dataclasses import dataclass, field
from typing import Any, Protocol

from millrace_streams.stores.base import ObjectStore


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

    def __len__(self) -> int:
        """How many entries are held back."""
        return len(self._order)

    def put(self, identity: Hashable, entry: Entry) -> None:
        """Hold an entry back; one that is there already keeps its place."""
        self._remember(identity, self._entries.get(identity))
        self.restore(identity, entry)

    def restore(self, identity: Hashable, entry: Any) -> None:
        """Put an entry back."""
        if entry is None:
            self._take(identity)
            return
        if identity not in self._entries:
            self._place_of[identity] = entry.place
            insort(self._order, (entry.place, identity), key=lambda item: item[0])
        self._entries[identity] = entry

    def oldest_ms(self) -> int | None:
        """The time of the first entry."""
        return self._order[0][0][0] if self._order else None

    def pop_oldest(self) -> tuple[Any, Any]:
        """Take out the first entry, with its identity."""
        _, identity = self._order[0]
        return identity, self.remove(identity)

    def remove(self, identity: Hashable) -> Any:
        """Take an entry out, wherever it stands; None if it is not there."""
        if identity not in self._entries:
            return None
        self._remember(identity, self._entries[identity])
        return self._take(identity)

    def _take(self, identity: Hashable) -> Any:
        if identity not in self._entries:
            return None
        place = self._place_of.pop(identity)
        at = bisect_left(self._order, place, key=lambda item: item[0])
        while self._order[at][1] != identity:
            at += 1
        del self._order[at]
        return self._entries.pop(identity)

    def entry(self, identity: Hashable) -> Any:
        """The entry of an identity."""
        return self._entries.get(identity)

    def entries(self) -> Iterator[tuple[Any, Any]]:
        """All entries in their order."""
        return iter([(identity, self._entries[identity]) for _, identity in self._order])
