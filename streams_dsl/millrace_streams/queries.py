"""Interactive queries of a topology's stores by key, range and window.

They read the topology's checkpoint, and work while the query runs and after it has stopped.

    >>> from millrace_streams.queries import open_state
    >>> with open_state("/data/hours-checkpoint") as state:    # doctest: +SKIP
    ...     hours = state.store("hourly-departures")
    ...     hours.fetch("JFK", since, until)

The result is the state after one micro-batch, by default the last committed one. All stores of one ``open_state``
belong to the same batch. One Spark job reads a whole store at its first use, and later queries use memory. In a process
with a Spark session, such as the process that runs the query, the job takes some tenths of a second. Elsewhere a new
session starts first, which takes a few seconds.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import polars as pl

from millrace.errors import UsageError
from millrace_streams.checkpoints.entries import StoreEntry, entries_of, frame_of, sort_place
from millrace_streams.checkpoints.files import CheckpointFiles, checkpoint_files
from millrace_streams.checkpoints.manifest import Manifest
from millrace_streams.checkpoints.stored_state import (
    active_session,
    committed_batch,
    manifest_of,
    read_store,
    reading_session,
)
from millrace_streams.checkpoints.stores import StoreDescription
from millrace_streams.frames.cells import lookup_conversion
from millrace_streams.serdes import sort_key
from millrace_streams.steps.operator import AnyStore
from millrace_streams.stores import VersionedRecord, VersionedStore
from millrace_streams.windows import Windowed
from pyspark_millrace.checkpoints.query_log import is_mounted

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Time: TypeAlias = dt.datetime | int
"""An instant: a ``datetime`` (UTC without a zone), or milliseconds since 1970."""


@dataclass(frozen=True)
class QueryableStore:
    """A store after a batch, in parts by bucket. Keys and values are those of the topology's functions."""

    described: StoreDescription
    buckets: dict[int, AnyStore]

    def get(self, key: Any, *, as_of: Time | None = None) -> Any:
        """Return the value of a key, or None; from a versioned store optionally as of a time.

        A key with a window is a ``Windowed``. Raises ``UsageError`` for ``as_of`` on a store without versions.
        """
        if as_of is not None:
            found = self.version(key, as_of=as_of)
            return None if found is None else found.value
        if isinstance(key, Windowed):
            key = Windowed(self._key(key.key), key.start, key.end)
        else:
            key = self._key(key)
        entry = self._by_key.get(key)
        return None if entry is None else entry.value

    def version(self, key: Any, *, as_of: Time | None = None) -> VersionedRecord | None:
        """Return the current version of a key, or the version as of a time, with its start time (KIP-960).

        Raises ``UsageError`` for a store without versions.
        """
        found: VersionedRecord | None = None
        key = self._key(key)
        for store in self._versioned():
            stored = store.get(key, None if as_of is None else to_ms(as_of))
            if stored is not None:
                found = VersionedRecord(stored.value, stored.timestamp)
        return found

    def range(self, low: Any = None, high: Any = None, *, as_of: Time | None = None) -> list[StoreEntry]:
        """Return the entries from key ``low`` to ``high``, both inclusive, in byte order of the keys; None means no
        limit.

        From a versioned store they are optionally those as of a time. Raises ``UsageError`` for ``as_of`` on a store
        without versions.
        """
        low, high = self._key(low), self._key(high)
        entries = self.all() if as_of is None else self._all_as_of(to_ms(as_of))
        return [entry for entry in entries if _within(_bare(entry.key), low, high)]

    def all(self) -> list[StoreEntry]:
        """Return all entries, by key and window."""
        return list(self._by_key.values())

    def fetch(self, key: Any, since: Time | None = None, until: Time | None = None) -> list[StoreEntry]:
        """Return a key's windows that start from ``since`` to ``until`` (inclusive), or its sessions that overlap this
        range.

        Raises ``UsageError`` for a store without windows.
        """
        wanted = self._key(key)
        return [entry for entry in self.fetch_all(since, until) if _bare(entry.key) == wanted]

    def fetch_all(self, since: Time | None = None, until: Time | None = None) -> list[StoreEntry]:
        """Return windows or sessions of all keys, see ``fetch``."""
        if not self.described.windowed:
            raise UsageError(f"the store {self.described.name} has no windows: query it by keys only")
        since_ms, until_ms = (None if time is None else to_ms(time) for time in (since, until))
        is_session = self.described.kind == "session" or self.described.layout.sessions
        return [
            entry
            for entry in self.all()
            if (since_ms is None or (entry.key.end if is_session else entry.key.start) >= since_ms)
            and (until_ms is None or entry.key.start <= until_ms)
        ]

    def frame(self, entries: list[StoreEntry] | None = None) -> pl.DataFrame:
        """Return entries (default: all) as a frame with columns of the key, its window, the value, and
        ``timestamp``.
        """
        return frame_of(self.all() if entries is None else entries, self.described)

    def _key(self, key: Any) -> Any:
        """Return a key as in the store; one that does not fit is not there."""
        try:
            return lookup_conversion(self.described.layout)(key)
        except (pl.exceptions.PolarsError, TypeError, ValueError, OverflowError):
            return key

    def _versioned(self) -> Iterator[VersionedStore]:
        for store in self.buckets.values():
            if not isinstance(store, VersionedStore):
                raise UsageError(f"the store {self.described.name} keeps no versions: query it without as_of")
            yield store

    def _all_as_of(self, as_of_ms: int) -> list[StoreEntry]:
        versions = [(key, store.get(key, as_of_ms)) for store in self._versioned() for key in store.all_keys()]
        found = [StoreEntry(key, stored.value, stored.timestamp) for key, stored in versions if stored is not None]
        return sorted(found, key=lambda entry: sort_place(entry.key))

    @cached_property
    def _by_key(self) -> dict[Any, StoreEntry]:
        if self.described.kind == "buffer":
            raise UsageError(
                f"the store {self.described.name} is internal to {self.described.node} and has no values by "
                "key: millrace streams export-state writes its rows"
            )
        found = [entry for store in self.buckets.values() for entry in entries_of(store, self.described)]
        return {entry.key: entry for entry in sorted(found, key=lambda entry: sort_place(entry.key))}


@dataclass(frozen=True)
class StoredState:
    """The stores of a checkpoint after one batch. Made by ``open_state``."""

    checkpoint: str
    batch_id: int
    manifest: Manifest
    _read: Callable[[StoreDescription], dict[int, AnyStore]]
    _stores: dict[str, QueryableStore] = field(default_factory=dict)

    @property
    def stores(self) -> dict[str, StoreDescription]:
        """Descriptions of all stores by name."""
        return {store.name: store for store in self.manifest.stores}

    def store(self, name: str) -> QueryableStore:
        """Return a store by name. Raises ``UsageError`` with the existing names."""
        if name not in self._stores:
            described = self.manifest.store(name)
            self._stores[name] = QueryableStore(described, self._read(described))
        return self._stores[name]


@contextmanager
def open_state(
    checkpoint: str | Path, *, spark: SparkSession | None = None, batch: int | None = None
) -> Iterator[StoredState]:
    """Open the state of a topology's checkpoint after its last committed batch, or after ``batch``.

    ``checkpoint`` is a path, or a URI of any file system that Spark supports. ``spark`` is the session that reads the
    state. The default is the active session, or else a temporary one. Give a URI if Spark's ``fs.defaultFS`` is not the
    local file system and no session is active.

    Raises ``UsageError`` if the directory is no such checkpoint, or the batch is not available.
    """
    if is_mounted(checkpoint) and active_session(spark) is None:
        # Refuse an invalid checkpoint before a session starts.
        _opened(checkpoint_files(checkpoint, None), batch)
    with reading_session(spark) as session:
        files = checkpoint_files(checkpoint, session)
        manifest, number = _opened(files, batch)
        yield StoredState(
            files.location, number, manifest, lambda described: read_store(session, files, described, number)
        )


def stored_manifest(checkpoint: str | Path) -> Manifest:
    """Return the manifest of a checkpoint. A session starts only if the file system needs one.

    Raises ``UsageError`` if the directory is no such checkpoint.
    """
    if is_mounted(checkpoint):
        return manifest_of(checkpoint_files(checkpoint, None))
    with reading_session(None) as session:
        return manifest_of(checkpoint_files(checkpoint, session))


def _opened(files: CheckpointFiles, batch: int | None) -> tuple[Manifest, int]:
    return manifest_of(files), committed_batch(files, batch)


def to_ms(time: Time) -> int:
    """Convert an instant to ms since 1970."""
    if isinstance(time, int):
        return time
    aware = time if time.tzinfo is not None else time.replace(tzinfo=dt.UTC)
    return (aware - dt.datetime(1970, 1, 1, tzinfo=dt.UTC)) // dt.timedelta(milliseconds=1)


def _bare(key: Any) -> Any:
    return key.key if isinstance(key, Windowed) else key


def _within(key: Any, low: Any, high: Any) -> bool:
    place = sort_key(key)
    return (low is None or place >= sort_key(low)) and (high is None or place <= sort_key(high))
