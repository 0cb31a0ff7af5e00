"""Record store: the records of a stream by key and time.

Stream-stream joins look up the records of the other side in it. Kafka Streams' class is a window store that retains
duplicates. A record is readable as long as ``time > newest time - retention``. The newest time is that of the newest
record ever put. A heap has the records that expire next.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Collection, Hashable, Iterable, Iterator
from dataclasses import dataclass, field
from heapq import heappop, heappush
from itertools import groupby
from typing import Any, Final, cast

from millrace_streams.serdes import sort_key
from millrace_streams.stores.base import Below, Change, ExpiringStore, ObjectStore, Place

_NEWEST: Final = "newest_time"
_NEWEST_BEFORE: Final = ("newest_left", "newest_right")
"""Names of the same number in the state of earlier versions."""


@dataclass(slots=True)
class RecordStore(ExpiringStore):
    """Values by key and time.

    An identity is the pair of key and time, and its entry is the tuple of its values in order. ``_records`` has the
    records of each key, ascending by time; those of equal times are in order of arrival.
    """

    _records: dict[Any, list[tuple[int, Any]]] = field(default_factory=dict)
    _to_expire: list[tuple[int, int, Any]] = field(default_factory=list)
    _filed: int = 0

    @property
    def oldest_ms(self) -> int:
        """Earliest readable time."""
        return self.number(_NEWEST) - self.spec.retention_ms + 1

    def between(self, key: Any, first_ms: int, last_ms: int) -> list[tuple[int, Any]]:
        """Return a key's records from ``first_ms`` to ``last_ms``, ascending by time."""
        first_ms = max(first_ms, self.oldest_ms)
        self._want_between_one(key, first_ms, last_ms)
        records = self._records.get(key)
        if records is None:
            return []
        return records[bisect_left(records, first_ms, key=_time) : bisect_right(records, last_ms, key=_time)]

    def put(self, key: Any, time_ms: int, value: Any) -> None:
        """Add a record, unless it has already expired."""
        self.numbers[_NEWEST] = max(self.number(_NEWEST), time_ms)
        if time_ms < self.oldest_ms:
            return
        identity = (key, time_ms)
        if identity not in self._undo:
            self._undo[identity] = self.entry(identity)
        self._insert(key, time_ms, value)

    def want_records(self, keys: Collection[Any], own: Iterable[Hashable], first_ms: int, last_ms: int) -> None:
        """Load the entries that a batch changes (``own``), and all of these keys from ``first_ms`` to ``last_ms``."""
        if self._below is not None:
            slots = self._slots_between(max(first_ms, self.oldest_ms), last_ms)
            self.want([*map(self.place_of, own), *((key, slot) for key in keys for slot in slots)])

    def commit(self) -> Change:
        """End a batch, in which records may have expired; returns its changes."""
        self.expire()
        return ExpiringStore.commit(self)

    def lie_over(self, below: Below, numbers: dict[str, int], kept_from_ms: int) -> None:
        """Start over entries that are not in memory yet, also those of earlier versions."""
        newest = [numbers[name] for name in (_NEWEST, *_NEWEST_BEFORE) if name in numbers]
        ObjectStore.lie_over(self, below, {_NEWEST: max(newest)} if newest else {}, kept_from_ms)

    def restore(self, identity: Hashable, entry: Any) -> None:
        """Restore an entry."""
        key, time_ms = cast("tuple[Any, int]", identity)
        for value in entry:
            self._insert(key, time_ms, value)

    def entry(self, identity: Hashable) -> tuple[Any, ...] | None:
        """Return the values of a key and time."""
        key, time_ms = cast("tuple[Any, int]", identity)
        if self._below is not None:
            self._want_one((key, self._below.slot_of(time_ms)))
        records = self._records.get(key)
        if records is None or records[-1][0] < time_ms:
            return None
        found = records[bisect_left(records, time_ms, key=_time) : bisect_right(records, time_ms, key=_time)]
        return tuple(value for _, value in found) or None

    def place_of(self, identity: Hashable) -> Place:
        """Return the key and the slot of the time."""
        key, time_ms = cast("tuple[Any, int]", identity)
        assert self._below is not None
        return (key, self._below.slot_of(time_ms))

    def packed_entries(self) -> Iterator[tuple[tuple[Any, int], Any]]:
        """Return all entries that were not removed."""
        self.want_all()
        for key, records in self._records.items():
            for time_ms, same in groupby(records, key=_time):
                yield (key, time_ms), tuple(value for _, value in same)

    def entries(self) -> Iterator[tuple[Any, tuple[Any, ...]]]:
        """Return all readable entries, by key and time."""
        found = [(identity, values) for identity, values in self.packed_entries() if identity[1] >= self.oldest_ms]
        return iter(sorted(found, key=lambda item: (sort_key(item[0][0]), item[0][1])))

    def _insert(self, key: Any, time_ms: int, value: Any) -> None:
        records = self._records.setdefault(key, [])
        if not records or records[-1][0] <= time_ms:
            records.append((time_ms, value))
        else:
            insort(records, (time_ms, value), key=_time)
        self._filed += 1
        heappush(self._to_expire, (time_ms, self._filed, key))

    def _remove_older(self, limit_ms: int) -> None:
        while self._to_expire and self._to_expire[0][0] < limit_ms:
            time_ms, _, key = heappop(self._to_expire)
            # Rows expire by their time, so an expired entry needs no mark of its deletion.
            self._undo.pop((key, time_ms), None)
            records = self._records.get(key)
            if records is not None:
                del records[: bisect_left(records, limit_ms, key=_time)]
                if not records:
                    del self._records[key]


def _time(record: tuple[int, Any]) -> int:
    return record[0]
