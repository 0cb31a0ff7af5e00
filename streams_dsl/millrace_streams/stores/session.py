"""The session store: a value per key and session, from its first to its last record, kept for a retention.

A session can be read as long as ``end > newest end - retention``.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Hashable, Iterator
from dataclasses import dataclass, field
from typing import Any, cast

from millrace_streams.serdes import sort_key
from millrace_streams.stores.base import ObjectStore
from millrace_streams.windows import Windowed


@dataclass(slots=True)
class SessionStore(ObjectStore):
    """Values by key and session; an identity is a ``Windowed``."""

    _sessions: dict[Any, dict[tuple[int, int], Any]] = field(default_factory=dict)
    _ends: list[tuple[Any, ...]] = field(default_factory=list)

    @property
    def oldest_ms(self) -> int:
        """The earliest end that can be read."""
        return self.number("newest_end") - self.spec.retention_ms + 1

    def find(self, key: Any, earliest_end_ms: int, latest_start_ms: int) -> list[tuple[Windowed, Any]]:
        """A key's sessions that end no earlier and start no later than this, by their end."""
        earliest_end_ms = max(earliest_end_ms, self.oldest_ms)
        found = [
            (end, start, value)
            for (start, end), value in self._sessions.get(key, {}).items()
            if end >= earliest_end_ms and start <= latest_start_ms
        ]
        found.sort(key=lambda session: session[:2])
        return [(Windowed(key, start, end), value) for end, start, value in found]

    def ended(self, first_ms: int, last_ms: int) -> list[tuple[Windowed, Any]]:
        """All keys' sessions that end from ``first_ms`` to ``last_ms``, by end and then key."""
        found = []
        for end, start, _, key in self._ends[bisect_left(self._ends, (first_ms,)) :]:
            if end > last_ms:
                break
            found.append((Windowed(key, start, end), self._sessions[key][start, end]))
        found.sort(key=lambda session: (session[0].end, sort_key(session[0].key), session[0].start))
        return found

    def put(self, session: Windowed, value: Any) -> None:
        """Set the value of a session; None deletes it."""
        self._remember(session, self.entry(session))
        self.numbers["newest_end"] = max(self.number("newest_end"), session.end)
        self.restore(session, value)

    def restore(self, identity: Hashable, entry: Any) -> None:
        """Put an entry back."""
        key, start, end = session = cast("Windowed", identity)
        if entry is None:
            self._delete(session)
            return
        sessions = self._sessions.setdefault(key, {})
        if (start, end) not in sessions:
            insort(self._ends, (end, start, sort_key(key), key))
        sessions[start, end] = entry

    def expire(self, *, until_ms: int | None = None) -> None:
        """Forget the sessions that can no longer be read, at most those that end before ``until_ms``."""
        limit = self.oldest_ms if until_ms is None else min(until_ms, self.oldest_ms)
        while self._ends and self._ends[0][0] < limit:
            end, start, _, key = self._ends[0]
            self._delete(Windowed(key, start, end))

    def entry(self, identity: Hashable) -> Any:
        """The value of a session, also when its retention is over."""
        key, start, end = cast("Windowed", identity)
        return self._sessions.get(key, {}).get((start, end))

    def packed_entries(self) -> Iterator[tuple[Hashable, Any]]:
        """All sessions that were not forgotten: some wait for their final."""
        return iter(
            [(Windowed(key, *place), value) for key, each in self._sessions.items() for place, value in each.items()]
        )

    def entries(self) -> Iterator[tuple[Windowed, Any]]:
        """All sessions within their retention."""
        for key in sorted(self._sessions, key=sort_key):
            for (start, end), value in sorted(self._sessions[key].items(), key=lambda item: item[0]):
                if end >= self.oldest_ms:
                    yield Windowed(key, start, end), value

    def _delete(self, session: Windowed) -> None:
        key, start, end = session
        sessions = self._sessions.get(key, {})
        if sessions.pop((start, end), None) is not None:
            del self._ends[bisect_left(self._ends, (end, start, sort_key(key)))]
        if not sessions:
            self._sessions.pop(key, None)
