"""Versioned store: versions of values by start of validity (KIP-889).

A version is valid until the next one. ``history_ms`` limits how far back versions can be read and changed. An older put
is refused. An older read finds nothing, unless the newest version of the key is old enough to answer it.

A key is forgotten at the end of the batch if its newest version is a deletion from before the history. No read and no
put depends on such a deletion. Rows below are forgotten when they are written the next time. The newest value of a key
stays for ever.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Hashable, Iterator
from dataclasses import dataclass, field
from heapq import heappop, heappush
from typing import Any

from millrace_streams.serdes import sort_key
from millrace_streams.stores.base import Change, ObjectStore, Stored


@dataclass(frozen=True, slots=True)
class VersionedRecord:
    """A version: its value and the time from which it is valid.

    ``valid_to`` is always None, as in Kafka Streams 3.9, which does not set it.
    """

    value: Any
    timestamp: int
    valid_to: int | None = None

    def __str__(self) -> str:
        """Return value and time."""
        return f"{self.value}@{self.timestamp}"


@dataclass(slots=True)
class Versions:
    """Versions of one key, ascending; a value of None is a deletion."""

    times: list[int] = field(default_factory=list)
    values: list[Any] = field(default_factory=list)

    def put(self, timestamp_ms: int, value: Any) -> bool:
        """Add a version; returns whether it is the newest now.

        In Kafka's store a deletion with the time of the newest value removes this value. The deletion is known later
        only as the end of the value before it. If there is no value before it, an older version can be the newest
        again.
        """
        place = bisect_left(self.times, timestamp_ms)
        if place < len(self.times) and self.times[place] == timestamp_ms:
            is_newest, follows_value = place == len(self.times) - 1, place > 0 and self.values[place - 1] is not None
            if value is None and self.values[place] is not None and is_newest and not follows_value:
                del self.times[place], self.values[place]
                return True
            self.values[place] = value
        else:
            self.times.insert(place, timestamp_ms)
            self.values.insert(place, value)
        return place == len(self.times) - 1

    def at(self, as_of_ms: int) -> Stored | None:
        """Return the version valid at a time."""
        place = bisect_right(self.times, as_of_ms) - 1
        if place < 0 or self.values[place] is None:
            return None
        return Stored(self.values[place], self.times[place])

    def newest(self) -> Stored | None:
        """Return the version valid now."""
        if not self.values or self.values[-1] is None:
            return None
        return Stored(self.values[-1], self.times[-1])

    def get(self, as_of_ms: int | None, oldest_ms: int) -> Stored | None:
        """Return the version valid at a time, or now; before ``oldest_ms`` only the newest can answer."""
        newest = self.newest()
        if as_of_ms is None or (newest is not None and newest.timestamp <= as_of_ms):
            return newest
        return self.at(as_of_ms) if as_of_ms >= oldest_ms else None

    def prune(self, oldest_ms: int) -> None:
        """Remove versions that ended before ``oldest_ms``."""
        keep = max(0, bisect_right(self.times, oldest_ms) - 1)
        if keep:
            del self.times[:keep], self.values[:keep]

    def copy(self) -> Versions:
        """Return an independent copy."""
        return Versions(list(self.times), list(self.values))


@dataclass(slots=True)
class VersionedStore(ObjectStore):
    """Versions by key. A heap has the keys whose newest version may be a deletion, by its time."""

    _versions: dict[Any, Versions] = field(default_factory=dict)
    _deleted: list[tuple[int, int, Any]] = field(default_factory=list)
    _filed: int = 0

    @property
    def oldest_ms(self) -> int:
        """Start of the history."""
        return self.number("newest_time") - self.spec.retention_ms

    def get(self, key: Any, as_of_ms: int | None = None) -> Stored | None:
        """Return the version of a key that is valid now, or at a time."""
        versions = self.entry(key)
        return None if versions is None else versions.get(as_of_ms, self.oldest_ms)

    def put(self, key: Any, value: Any, timestamp_ms: int) -> bool | None:
        """Add a version (None: a deletion); returns whether it is the newest, None if it is older than the history."""
        if timestamp_ms < self.oldest_ms:
            return None
        self.numbers["newest_time"] = max(self.number("newest_time"), timestamp_ms)
        versions = self.entry(key)
        self._remember(key, None if versions is None else versions.copy())
        if versions is None:
            versions = self._versions[key] = Versions()
        newest = versions.put(timestamp_ms, value)
        versions.prune(self.oldest_ms)
        if not versions.times:
            del self._versions[key]
        self._note_deletion(key, versions)
        return newest

    def commit(self) -> Change:
        """End a batch, and forget keys that were deleted before the history; returns the changes."""
        while self._deleted and self._deleted[0][0] < self.oldest_ms:
            _, _, key = heappop(self._deleted)
            versions = self._versions.get(key)
            if versions is not None and versions.values[-1] is None and versions.times[-1] < self.oldest_ms:
                del self._versions[key]
        self.kept_from_ms = max(self.kept_from_ms, self.oldest_ms)
        return ObjectStore.commit(self)

    def restore(self, identity: Hashable, entry: Any) -> None:
        """Restore all versions of a key."""
        self._versions[identity] = entry
        self._note_deletion(identity, entry)

    def before(self, identity: Hashable) -> Versions | None:
        """Return a copy of a key's versions as of the start of the batch, to which changes can be applied."""
        versions = self._undo[identity] if identity in self._undo else self.entry(identity)
        return None if versions is None else versions.copy()

    def entry(self, identity: Hashable) -> Versions | None:
        """Return a key's versions."""
        if self._below is not None:
            self._want_one(identity)
        return self._versions.get(identity)

    def packed_entries(self) -> Iterator[tuple[Hashable, Any]]:
        """Return the versions of each key."""
        self.want_all()
        return iter(self._versions.items())

    def all_keys(self) -> list[Any]:
        """Return all keys with versions, also deleted ones, in byte order."""
        self.want_all()
        return sorted(self._versions, key=sort_key)

    def _note_deletion(self, key: Any, versions: Versions) -> None:
        if versions.values and versions.values[-1] is None:
            self._filed += 1
            heappush(self._deleted, (versions.times[-1], self._filed, key))

    def entries(self) -> Iterator[tuple[Any, Stored]]:
        """Yield the newest version of each key that has one."""
        for key in self.all_keys():
            newest = self._versions[key].newest()
            if newest is not None:
                yield key, newest
