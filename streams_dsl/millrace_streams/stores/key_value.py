"""Key-value store: a value with its timestamp per key."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from millrace_streams.serdes import sort_key
from millrace_streams.stores.base import ObjectStore, Stored


@dataclass(slots=True)
class KeyValueStore(ObjectStore):
    """A value and its timestamp per key."""

    _rows: dict[Any, Stored] = field(default_factory=dict)

    def get(self, key: Any) -> Stored | None:
        """Return the entry of a key."""
        stored = self._rows.get(key)
        if stored is None and self._below is not None:
            self._want_one(key)
            stored = self._rows.get(key)
        return stored

    def put(self, key: Any, value: Any, timestamp_ms: int) -> None:
        """Set a key's value; None deletes it."""
        if key not in self._undo:
            self._undo[key] = self.get(key)
        if value is None:
            self._rows.pop(key, None)
        else:
            self._rows[key] = Stored(value, timestamp_ms)

    @property
    def rows(self) -> dict[Any, Stored]:
        """Entries in memory by key, including prefetched ones; must not be changed."""
        return self._rows

    def put_all(self, keys: Sequence[Any], values: Sequence[Any], timestamps_ms: Sequence[int]) -> list[Any]:
        """Set values one after the other; returns the value that each replaces."""
        self.want(keys)
        current: dict[Any, Any] = {}
        replaced = []
        for key, value in zip(keys, values, strict=True):
            if key in current:
                replaced.append(current[key])
            else:
                stored = self._rows.get(key)
                replaced.append(None if stored is None else stored.value)
            current[key] = value
        # Only the last value of each key has to be stored.
        for key, timestamp_ms in dict(zip(keys, timestamps_ms, strict=True)).items():
            self.put(key, current[key], timestamp_ms)
        return replaced

    def restore(self, identity: Hashable, entry: Any) -> None:
        """Restore an entry."""
        self._rows[identity] = entry

    def entry(self, identity: Hashable) -> Stored | None:
        """Return the entry of a key, see ``get``."""
        return self.get(identity)

    def entries(self) -> Iterator[tuple[Any, Stored]]:
        """Return all entries."""
        self.want_all()
        return iter(sorted(self._rows.items(), key=lambda row: sort_key(row[0])))

    def count(self) -> int:
        """Return the number of entries."""
        self.want_all()
        return len(self._rows)

    def range(self, low: Any, high: Any) -> Iterator[tuple[Any, Stored]]:
        """Yield the entries from key ``low`` to ``high``, both inclusive; None means no limit."""
        first = None if low is None else sort_key(low)
        last = None if high is None else sort_key(high)
        for key, stored in self.entries():
            place = sort_key(key)
            if (first is None or place >= first) and (last is None or place <= last):
                yield key, stored
