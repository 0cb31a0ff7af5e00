"""Store views for processors: Kafka Streams' methods with Python names."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from millrace_streams.frames.cells import CellConversion, ValueConversion, lookup_conversion
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


@dataclass(frozen=True, slots=True)
class KeyValueView:
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
        if key is None:
            raise ValueError(f"the store {self._store.name} cannot hold a key of None: leave such records out")
        key = self._key(key)
        self._store.put(key, self._convert(key, value), 0)

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

    def all(self) -> Iterator[tuple[Any, Any]]:
        """Return all pairs of key and value."""
        return iter([(key, stored.value) for key, stored in self._store.entries()])

    def range(self, low: Any = None, high: Any = None) -> Iterator[tuple[Any, Any]]:
        """Return the pairs from key ``low`` to ``high``, both inclusive; None means no limit."""
        return iter([(key, stored.value) for key, stored in self._store.range(self._key(low), self._key(high))])


@dataclass(frozen=True, slots=True)
class WindowView:
    """Store of a value per key and window start (Kafka's ``WindowStore``).

    The start of a window is in ms.
    """

    _store: WindowStore
    _convert: ValueConversion
    _key: CellConversion

    def put(self, key: Any, value: Any, start_ms: int) -> None:
        """Set the value of a window; None deletes it. Expired windows are ignored."""
        if start_ms >= self._store.oldest_ms:
            key = self._key(key)
            self._store.put(key, start_ms, self._convert(key, value), start_ms)
            self._store.expire()

    def fetch(self, key: Any, first_ms: int, last_ms: int | None = None) -> Any:
        """Return the value of the window that starts at ``first_ms``; or the pairs of start and value up to
        ``last_ms``.
        """
        key = self._key(key)
        if last_ms is None:
            return _value(self._store.fetch(key, first_ms))
        windows = self._store.fetch_range(key, first_ms, last_ms)
        return iter([(start, stored.value) for start, stored in windows])

    def all(self) -> Iterator[tuple[Any, int, Any]]:
        """Return key, start and value of all windows."""
        return iter([(*identity, stored.value) for identity, stored in self._store.entries()])


@dataclass(frozen=True, slots=True)
class SessionView:
    """Store of a value per key and session (Kafka's ``SessionStore``)."""

    _store: SessionStore
    _convert: ValueConversion
    _key: CellConversion

    def put(self, session: Windowed, value: Any) -> None:
        """Set the value of a session; None deletes it."""
        session = self._session(session)
        self._store.put(session, self._convert(session, value))
        self._store.expire()

    def remove(self, session: Windowed) -> None:
        """Delete a session."""
        self._store.put(self._session(session), None)

    def fetch(self, key: Any) -> Iterator[tuple[Windowed, Any]]:
        """Return all sessions of a key."""
        found = self._store.find(self._key(key), 0, FOREVER_MS)
        return iter(sorted(found, key=lambda item: (item[0].start, item[0].end)))

    def find_sessions(self, key: Any, earliest_end_ms: int, latest_start_ms: int) -> Iterator[tuple[Windowed, Any]]:
        """Return the sessions of a key that end no earlier and start no later than these times."""
        return iter(self._store.find(self._key(key), earliest_end_ms, latest_start_ms))

    def _session(self, session: Windowed) -> Windowed:
        return Windowed(self._key(session.key), session.start, session.end)


@dataclass(frozen=True, slots=True)
class VersionedView:
    """Versions of a value per key (Kafka's ``VersionedKeyValueStore``).

    A version is valid from a time in ms.
    """

    _store: VersionedStore
    _convert: ValueConversion
    _key: CellConversion

    def put(self, key: Any, value: Any, timestamp_ms: int) -> bool:
        """Add a version; returns whether it was within the history."""
        key = self._key(key)
        return self._store.put(key, self._convert(key, value), timestamp_ms) is not None

    def get(self, key: Any, as_of: int | None = None) -> VersionedRecord | None:
        """Return the current version, or the one as of a time."""
        stored = self._store.get(self._key(key), as_of)
        return VersionedRecord(stored.value, stored.timestamp) if stored is not None else None

    def delete(self, key: Any, timestamp_ms: int) -> VersionedRecord | None:
        """Add a deletion at a time; returns the version that was valid then."""
        found = self.get(key, timestamp_ms)
        self._store.put(self._key(key), None, timestamp_ms)
        return found


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
