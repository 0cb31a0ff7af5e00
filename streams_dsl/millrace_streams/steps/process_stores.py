"""Store views for processors: Kafka Streams' methods with Python names."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final

from millrace_streams.frames.cells import CellConversion, ValueConversion, lookup_conversion
from millrace_streams.serdes import sort_key
from millrace_streams.steps.results import result_conversion
from millrace_streams.stores import (
    KeyValueStore,
    ObjectStore,
    SessionStore,
    VersionedRecord,
    VersionedStore,
    WindowStore,
)
from millrace_streams.stores.base import Stored
from millrace_streams.windows import FOREVER_MS, Windowed

_SEGMENT_MS_MIN: Final = 60_000
"""Shortest segment of Kafka Streams' persistent window store; otherwise a segment is half of the retention."""


class KeyValueReads(ABC):
    """Reading methods of key-value stores, in byte order of the keys."""

    __slots__ = ()

    @abstractmethod
    def get(self, key: Any) -> Any:
        """Return the value of a key; None if there is none."""

    def all(self) -> Iterator[tuple[Any, Any]]:
        """Return all pairs of key and value."""
        return self.range()

    def reverse_all(self) -> Iterator[tuple[Any, Any]]:
        """Return all pairs of key and value, the last key first."""
        return self.reverse_range()

    def range(self, low: Any = None, high: Any = None) -> Iterator[tuple[Any, Any]]:
        """Return the pairs from key ``low`` to ``high``, both inclusive; None means no limit."""
        return iter(self._between(low, high))

    def reverse_range(self, low: Any = None, high: Any = None) -> Iterator[tuple[Any, Any]]:
        """Return the pairs from key ``low`` to ``high``, both inclusive, the last key first."""
        return iter(self._between(low, high)[::-1])

    def prefix_scan(self, prefix: str | bytes) -> Iterator[tuple[Any, Any]]:
        """Return the pairs whose key starts with a prefix. Raises ``ValueError`` for keys that are no text or bytes."""
        start = _as_bytes(self._name(), prefix)
        return iter([pair for pair in self._between(None, None) if _as_bytes(self._name(), pair[0]).startswith(start)])

    @abstractmethod
    def approximate_num_entries(self) -> int:
        """Return the number of keys, which is exact."""

    @abstractmethod
    def _name(self) -> str:
        """Return the store's name."""

    @abstractmethod
    def _between(self, low: Any, high: Any) -> list[tuple[Any, Any]]:
        """Return the pairs from key ``low`` to ``high``, both inclusive; None means no limit."""


@dataclass(frozen=True, slots=True)
class KeyValueView(KeyValueReads):
    """Store of a value per key (Kafka's ``KeyValueStore``).

    Iterators are in byte order of the keys, over the content at their start.
    """

    _store: KeyValueStore
    _convert: ValueConversion
    _key: CellConversion

    def get(self, key: Any) -> Any:
        """Return the value of a key; None if there is none."""
        return _value(self._store.get(self._key(key)))

    def put(self, key: Any, value: Any) -> None:
        """Set a key's value; None deletes it. Raises ``ValueError`` for a key of None."""
        key = _present(self._store, self._key, key)
        self._store.put(key, self._convert(key, value), 0)

    def put_all(self, entries: Iterable[tuple[Any, Any]]) -> None:
        """Set the values of pairs of key and value, one after the other."""
        for key, value in entries:
            self.put(key, value)

    def put_if_absent(self, key: Any, value: Any) -> Any:
        """Set a key's value if it has none; returns the previous value."""
        found = self.get(key)
        if found is None:
            self.put(key, value)
        return found

    def delete(self, key: Any) -> Any:
        """Delete a key; returns its previous value."""
        found = self.get(key)
        self.put(key, None)
        return found

    def approximate_num_entries(self) -> int:
        """Return the number of keys, which is exact."""
        return self._store.count()

    def _name(self) -> str:
        return self._store.name

    def _between(self, low: Any, high: Any) -> list[tuple[Any, Any]]:
        return [(key, stored.value) for key, stored in self._store.range(self._key(low), self._key(high))]


@dataclass(frozen=True, slots=True)
class WindowView:
    """Store of a value per key and window start (Kafka's ``WindowStore``).

    The start of a window is in ms. Windows of several keys are in the order of Kafka Streams' persistent store: by
    segment of time, key and start.
    """

    _store: WindowStore
    _convert: ValueConversion
    _key: CellConversion

    def put(self, key: Any, value: Any, start_ms: int) -> None:
        """Set the value of a window; None deletes it. Expired windows are ignored. Raises ``ValueError`` for a key of
        None.
        """
        key = _present(self._store, self._key, key)
        if start_ms >= self._store.oldest_ms:
            self._store.put(key, start_ms, self._convert(key, value), start_ms)
            self._store.expire()

    def fetch(self, key: Any, first_ms: int, last_ms: int | None = None) -> Any:
        """Return the value of the window that starts at ``first_ms``; or the pairs of start and value up to
        ``last_ms``.
        """
        if last_ms is None:
            return _value(self._store.fetch(self._key(key), first_ms))
        return iter(self._of_key(key, first_ms, last_ms))

    def backward_fetch(self, key: Any, first_ms: int, last_ms: int) -> Iterator[tuple[int, Any]]:
        """Return the pairs of start and value of a key from ``first_ms`` to ``last_ms``, the last one first."""
        return iter(self._of_key(key, first_ms, last_ms)[::-1])

    def all(self) -> Iterator[tuple[Any, int, Any]]:
        """Return key, start and value of all windows."""
        return iter(self._between(0, FOREVER_MS))

    def backward_all(self) -> Iterator[tuple[Any, int, Any]]:
        """Return key, start and value of all windows, the last one first."""
        return iter(self._between(0, FOREVER_MS)[::-1])

    def fetch_all(self, first_ms: int, last_ms: int) -> Iterator[tuple[Any, int, Any]]:
        """Return key, start and value of the windows that start from ``first_ms`` to ``last_ms``."""
        return iter(self._between(first_ms, last_ms))

    def backward_fetch_all(self, first_ms: int, last_ms: int) -> Iterator[tuple[Any, int, Any]]:
        """Return key, start and value of the windows from ``first_ms`` to ``last_ms``, the last one first."""
        return iter(self._between(first_ms, last_ms)[::-1])

    def _of_key(self, key: Any, first_ms: int, last_ms: int) -> list[tuple[int, Any]]:
        return [(start, stored.value) for start, stored in self._store.fetch_range(self._key(key), first_ms, last_ms)]

    def _between(self, first_ms: int, last_ms: int) -> list[tuple[Any, int, Any]]:
        started = self._store.started(max(first_ms, self._store.oldest_ms), last_ms)
        found = [(key, start, stored.value) for key, start, stored in started]
        segment_ms = max(self._store.spec.retention_ms // 2, _SEGMENT_MS_MIN)
        return sorted(found, key=lambda window: (window[1] // segment_ms, sort_key(window[0])))


@dataclass(frozen=True, slots=True)
class SessionView:
    """Store of a value per key and session (Kafka's ``SessionStore``)."""

    _store: SessionStore
    _convert: ValueConversion
    _key: CellConversion

    def put(self, session: Windowed, value: Any) -> None:
        """Set the value of a session; None deletes it. Raises ``ValueError`` for a key of None."""
        session = self._session(session)
        self._store.put(session, self._convert(session, value))
        self._store.expire()

    def remove(self, session: Windowed) -> None:
        """Delete a session."""
        self._store.put(self._session(session), None)

    def fetch(self, key: Any) -> Iterator[tuple[Windowed, Any]]:
        """Return all sessions of a key, by end and then start."""
        return self.find_sessions(key, 0, FOREVER_MS)

    def backward_fetch(self, key: Any) -> Iterator[tuple[Windowed, Any]]:
        """Return all sessions of a key, the last one first."""
        return self.backward_find_sessions(key, 0, FOREVER_MS)

    def fetch_session(self, key: Any, start_ms: int, end_ms: int) -> Any:
        """Return the value of a session; None if there is none."""
        readable = end_ms >= self._store.oldest_ms
        return self._store.entry(Windowed(self._key(key), start_ms, end_ms)) if readable else None

    def find_sessions(self, key: Any, earliest_end_ms: int, latest_start_ms: int) -> Iterator[tuple[Windowed, Any]]:
        """Return the sessions of a key that end no earlier and start no later than these times."""
        return iter(self._store.find(self._key(key), earliest_end_ms, latest_start_ms))

    def backward_find_sessions(
        self, key: Any, earliest_end_ms: int, latest_start_ms: int
    ) -> Iterator[tuple[Windowed, Any]]:
        """Return the sessions of ``find_sessions``, the last one first."""
        return iter(self._store.find(self._key(key), earliest_end_ms, latest_start_ms)[::-1])

    def _session(self, session: Windowed) -> Windowed:
        return Windowed(_present(self._store, self._key, session.key), session.start, session.end)


@dataclass(frozen=True, slots=True)
class VersionedView:
    """Versions of a value per key (Kafka's ``VersionedKeyValueStore``).

    A version is valid from a time in ms.
    """

    _store: VersionedStore
    _convert: ValueConversion
    _key: CellConversion

    def put(self, key: Any, value: Any, timestamp_ms: int) -> bool:
        """Add a version; returns whether it was within the history. Raises ``ValueError`` for a key of None."""
        key = _present(self._store, self._key, key)
        return self._store.put(key, self._convert(key, value), timestamp_ms) is not None

    def get(self, key: Any, as_of: int | None = None) -> VersionedRecord | None:
        """Return the current version, or the one as of a time."""
        stored = self._store.get(self._key(key), as_of)
        return VersionedRecord(stored.value, stored.timestamp) if stored is not None else None

    def delete(self, key: Any, timestamp_ms: int) -> VersionedRecord | None:
        """Add a deletion at a time; returns the version that was valid then.

        A deletion from before the history is ignored, and returns None.
        """
        key = _present(self._store, self._key, key)
        found = self.get(key, timestamp_ms)
        return found if self._store.put(key, None, timestamp_ms) is not None else None


def view_of(store: ObjectStore) -> Any:
    """Return the view of a store. Keys and values that are put are read as their columns give them back, also before
    they are saved.
    """
    key = lookup_conversion(store.spec.entry_layout)
    convert = result_conversion(store.spec.entry_layout, f"the value for the store {store.name}")
    match store:
        case KeyValueStore():
            return KeyValueView(store, convert, key)
        case WindowStore():
            return WindowView(store, convert, key)
        case SessionStore():
            return SessionView(store, convert, key)
        case VersionedStore():
            return VersionedView(store, convert, key)
    raise TypeError(f"{type(store).__name__} is not a store of processors")


def _value(stored: Stored | None) -> Any:
    return stored.value if stored is not None else None


def _present(store: ObjectStore, convert: CellConversion, key: Any) -> Any:
    """Return a key to write as its column gives it back. Raises ``ValueError`` for None."""
    if key is None:
        raise ValueError(f"the store {store.name} cannot hold a key of None: leave such records out")
    return convert(key)


def _as_bytes(store: str, key: Any) -> bytes:
    if isinstance(key, str):
        return key.encode()
    if isinstance(key, bytes):
        return key
    raise ValueError(f"the store {store}: a prefix is of keys that are text or bytes, not of {key!r}: use range")
