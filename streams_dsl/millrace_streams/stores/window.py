"""Window store: a value per key and window start.

A window is readable as long as ``start > newest start - retention``. The newest start is that of the newest window ever
put.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Hashable, Iterator
from dataclasses import dataclass, field
from typing import Any, cast

from millrace_streams.serdes import sort_key
from millrace_streams.stores.base import ExpiringStore, Place, Stored


@dataclass(slots=True)
class WindowStore(ExpiringStore):
    """Values by key and window start.

    An identity is the pair of both. ``_starts_of`` has the starts of each key's windows, ascending.
    """

    _windows: dict[Any, dict[int, Stored]] = field(default_factory=dict)
    _starts_of: dict[Any, list[int]] = field(default_factory=dict)
    _starts: list[int] = field(default_factory=list)
    _keys_of: dict[int, dict[Any, None]] = field(default_factory=dict)

    @property
    def oldest_ms(self) -> int:
        """Earliest readable start."""
        return self.number("newest_start") - self.spec.retention_ms + 1

    def fetch(self, key: Any, start_ms: int) -> Stored | None:
        """Return the entry of a key's window."""
        if start_ms < self.oldest_ms:
            return None
        return self.entry((key, start_ms))

    def fetch_range(self, key: Any, first_ms: int, last_ms: int) -> list[tuple[int, Stored]]:
        """Return a key's windows that start from ``first_ms`` to ``last_ms``, ascending."""
        first_ms = max(first_ms, self.oldest_ms)
        self._want_between_one(key, first_ms, last_ms)
        starts = self._starts_of.get(key)
        if starts is None:
            return []
        windows = self._windows[key]
        return [
            (start, windows[start]) for start in starts[bisect_left(starts, first_ms) : bisect_right(starts, last_ms)]
        ]

    def started(self, first_ms: int, last_ms: int) -> Iterator[tuple[Any, int, Stored]]:
        """Yield all keys' windows that start from ``first_ms`` to ``last_ms``, by start and then key."""
        self._want_slots(first_ms, last_ms)
        low, high = bisect_left(self._starts, first_ms), bisect_right(self._starts, last_ms)
        for start in self._starts[low:high]:
            for key in sorted(self._keys_of[start], key=sort_key):
                yield key, start, self._windows[key][start]

    def put(self, key: Any, start_ms: int, value: Any, timestamp_ms: int) -> None:
        """Set the value of a key's window; None deletes it."""
        self._remember((key, start_ms), self.entry((key, start_ms)))
        if start_ms > self.number("newest_start"):
            self.numbers["newest_start"] = start_ms
        self.restore((key, start_ms), None if value is None else Stored(value, timestamp_ms))

    def restore(self, identity: Hashable, entry: Any) -> None:
        """Restore an entry."""
        key, start_ms = cast("tuple[Any, int]", identity)
        if entry is None:
            self._delete(key, start_ms)
            return
        if start_ms not in self._keys_of:
            insort(self._starts, start_ms)
        self._keys_of.setdefault(start_ms, {})[key] = None
        windows = self._windows.setdefault(key, {})
        if start_ms not in windows:
            insort(self._starts_of.setdefault(key, []), start_ms)
        windows[start_ms] = entry

    def entry(self, identity: Hashable) -> Stored | None:
        """Return the entry of a key and start, even after its retention."""
        key, start_ms = cast("tuple[Any, int]", identity)
        if self._below is not None:
            self._want_one((key, self._below.slot_of(start_ms)))
        return self._windows.get(key, {}).get(start_ms)

    def place_of(self, identity: Hashable) -> Place:
        """Return the key and the slot of the start."""
        key, start_ms = cast("tuple[Any, int]", identity)
        assert self._below is not None
        return (key, self._below.slot_of(start_ms))

    def packed_entries(self) -> Iterator[tuple[Hashable, Any]]:
        """Return all entries that were not removed, including those that wait for their final result."""
        self.want_all()
        return iter([((key, start), stored) for key, each in self._windows.items() for start, stored in each.items()])

    def entries(self) -> Iterator[tuple[Any, Stored]]:
        """Yield all entries within their retention, under pairs of key and start."""
        self.want_all()
        for key in sorted(self._windows, key=sort_key):
            for start in self._starts_of[key]:
                if start >= self.oldest_ms:
                    yield (key, start), self._windows[key][start]

    def _remove_older(self, limit_ms: int) -> None:
        for start in self._starts[: bisect_left(self._starts, limit_ms)]:
            for key in list(self._keys_of[start]):
                self._delete(key, start)

    def _delete(self, key: Any, start_ms: int) -> None:
        windows = self._windows.get(key)
        if windows is None or windows.pop(start_ms, None) is None:
            return
        starts = self._starts_of[key]
        starts.pop(bisect_left(starts, start_ms))
        if not windows:
            del self._windows[key], self._starts_of[key]
        keys = self._keys_of[start_ms]
        del keys[key]
        if not keys:
            del self._keys_of[start_ms]
            self._starts.pop(bisect_left(self._starts, start_ms))
