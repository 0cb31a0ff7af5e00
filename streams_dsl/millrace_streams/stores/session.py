"""Session store: a value per key and session, kept for a retention.

A session spans its first to its last record. It is readable as long as ``end > newest end - retention``. Two heaps have
the sessions that end next. A deleted session stays in them until its turn comes or most of the sessions in them are
deleted. An immediate removal would take time proportional to the number of sessions.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Hashable, Iterator
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush
from typing import Any, Final, cast

from millrace_streams.serdes import sort_key
from millrace_streams.stores.base import ExpiringStore, Place
from millrace_streams.windows import FOREVER_MS, Windowed

_NOTHING: Final = object()
_DELETED_MIN: Final = 1024
"""Number of deleted sessions that is not worth a clean-up."""


@dataclass(slots=True)
class SessionStore(ExpiringStore):
    """Values by key and session; an identity is a ``Windowed``.

    ``_places_of`` has the ends and starts of each key's sessions, ascending.
    """

    _sessions: dict[Any, dict[tuple[int, int], Any]] = field(default_factory=dict)
    _places_of: dict[Any, list[tuple[int, int]]] = field(default_factory=dict)
    _to_end: list[tuple[int, int, Any, int]] = field(default_factory=list)
    _to_expire: list[tuple[int, int, Any, int]] = field(default_factory=list)
    _filed: int = 0
    _kept: int = 0

    @property
    def oldest_ms(self) -> int:
        """Earliest readable end."""
        return self.number("newest_end") - self.spec.retention_ms + 1

    def find(self, key: Any, earliest_end_ms: int, latest_start_ms: int) -> list[tuple[Windowed, Any]]:
        """Return a key's sessions that end no earlier and start no later than these times, by end."""
        earliest_end_ms = max(earliest_end_ms, self.oldest_ms)
        self._want_between_one(key, earliest_end_ms, FOREVER_MS)
        places = self._places_of.get(key)
        if places is None:
            return []
        sessions = self._sessions[key]
        return [
            (Windowed(key, start, end), sessions[start, end])
            for end, start in places[bisect_left(places, earliest_end_ms, key=_end) :]
            if start <= latest_start_ms
        ]

    def ended(self, first_ms: int, last_ms: int) -> list[tuple[Windowed, Any]]:
        """Return all keys' sessions that end from ``first_ms`` to ``last_ms``, by end, start and key.

        Sessions that end by ``last_ms`` must not be requested again.
        """
        self._want_slots(first_ms, last_ms)
        found: dict[Windowed, Any] = {}
        while self._to_end and self._to_end[0][0] <= last_ms:
            end, _, key, start = heappop(self._to_end)
            sessions = self._sessions.get(key, {})
            if end >= first_ms and (start, end) in sessions:
                found[Windowed(key, start, end)] = sessions[start, end]
        return sorted(found.items(), key=lambda item: (item[0].end, item[0].start, sort_key(item[0].key)))

    def expiring(self, first_ms: int, limit_ms: int) -> list[Windowed]:
        """Return all keys' sessions that end from ``first_ms`` and before ``limit_ms``, and were not removed."""
        self._want_slots(first_ms, limit_ms - 1)
        places = []
        while self._to_expire and self._to_expire[0][0] < limit_ms:
            places.append(heappop(self._to_expire))
        for place in places:
            heappush(self._to_expire, place)
        return [
            Windowed(key, start, end)
            for end, _, key, start in places
            if end >= first_ms and (start, end) in self._sessions.get(key, {})
        ]

    def put(self, session: Windowed, value: Any) -> None:
        """Set the value of a session; None deletes it."""
        if session not in self._undo:
            self._undo[session] = self.entry(session)
        if session.end > self.number("newest_end"):
            self.numbers["newest_end"] = session.end
        self.restore(session, value)

    def restore(self, identity: Hashable, entry: Any) -> None:
        """Restore an entry."""
        key, start, end = cast("Windowed", identity)
        if entry is None:
            self._delete(key, start, end)
            return
        sessions = self._sessions.setdefault(key, {})
        if (start, end) not in sessions:
            self._file(key, start, end)
        sessions[start, end] = entry

    def entry(self, identity: Hashable) -> Any:
        """Return the value of a session, even after its retention."""
        key, start, end = cast("Windowed", identity)
        if self._below is not None:
            self._want_one((key, self._below.slot_of(end)))
        return self._sessions.get(key, {}).get((start, end))

    def place_of(self, identity: Hashable) -> Place:
        """Return the key and the slot of the end."""
        key, _, end = cast("Windowed", identity)
        assert self._below is not None
        return (key, self._below.slot_of(end))

    def packed_entries(self) -> Iterator[tuple[Hashable, Any]]:
        """Return all sessions that were not removed, including those that wait for their final result."""
        self.want_all()
        return iter(
            [(Windowed(key, *place), value) for key, each in self._sessions.items() for place, value in each.items()]
        )

    def entries(self) -> Iterator[tuple[Windowed, Any]]:
        """Yield all sessions within their retention."""
        self.want_all()
        for key in sorted(self._sessions, key=sort_key):
            for (start, end), value in sorted(self._sessions[key].items(), key=lambda item: item[0]):
                if end >= self.oldest_ms:
                    yield Windowed(key, start, end), value

    def _remove_older(self, limit_ms: int) -> None:
        while self._to_expire and self._to_expire[0][0] < limit_ms:
            end, _, key, start = heappop(self._to_expire)
            self._delete(key, start, end)
        while self._to_end and self._to_end[0][0] < limit_ms:
            heappop(self._to_end)

    def _delete(self, key: Any, start: int, end: int) -> None:
        sessions = self._sessions.get(key)
        if sessions is None:
            return
        if sessions.pop((start, end), _NOTHING) is _NOTHING:
            return
        self._kept -= 1
        places = self._places_of[key]
        places.pop(bisect_left(places, (end, start)))
        if not sessions:
            del self._sessions[key], self._places_of[key]

    def _file(self, key: Any, start: int, end: int) -> None:
        insort(self._places_of.setdefault(key, []), (end, start))
        self._kept += 1
        self._filed += 1
        place = (end, self._filed, key, start)
        heappush(self._to_end, place)
        heappush(self._to_expire, place)
        if len(self._to_expire) > 2 * self._kept + _DELETED_MIN:
            kept = {(key, start, end) for key, each in self._sessions.items() for start, end in each}
            kept.add((key, start, end))
            for heap in (self._to_end, self._to_expire):
                heap[:] = [(end, number, key, start) for end, number, key, start in heap if (key, start, end) in kept]
                heapify(heap)


def _end(place: tuple[int, int]) -> int:
    return place[0]
