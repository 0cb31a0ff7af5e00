"""Interactive queries: the stores of a topology's checkpoint, by key, range and window, while its query runs or rests.

    >>> from millrace_streams.queries import open_state
    >>> with open_state("/data/hours-checkpoint") as state:    # doctest: +SKIP
    ...     hours = state.store("hourly-departures")
    ...     hours.fetch("JFK", since, until)

What is seen is the state after one micro-batch, by default the last that is committed: all stores of one ``open_state``
are of that batch. A store is read whole, by one job of Spark, when it is first asked for; every question after that is
answered from memory. In a process with a Spark session (the one that runs the query, say) the job takes some tenths of
a second; elsewhere a session is begun first, which takes a few seconds.
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
from millrace_streams.checkpoints.stored_state import committed_batch, manifest_of, read_store, reading_session
from millrace_streams.checkpoints.stores import StoreDescription
from millrace_streams.serdes import sort_key
from millrace_streams.steps.operator import AnyStore
from millrace_streams.stores import VersionedRecord, VersionedStore
from millrace_streams.windows import Windowed
from pyspark_millrace.checkpoints.query_log import is_mounted

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Time: TypeAlias = dt.datetime | int
"""An instant: a ``datetime`` (UTC if it has no zone), or milliseconds since 1970."""


@dataclass(frozen=True)
class QueryableStore:
    """A store after a batch, of parts in ``buckets``. Keys and values are those that the topology's functions see."""

    described: StoreDescription
    buckets: dict[int, AnyStore]

    def get(self, key: Any, *, as_of: Time | None = None) -> Any:
        """The value of a key, None if there is none; of a versioned store as it was at a time.

        A key with a window is a ``Windowed``. Raises ``UsageError`` where the store keeps no versions.
        """
        if as_of is not None:
            found = self.version(key, as_of=as_of)
            return None if found is None else found.value
        entry = self._by_key.get(key)
        return None if entry is None else entry.value

    def version(self, key: Any, *, as_of: Time | None = None) -> VersionedRecord | None:
        """The version of a key that is valid now, or was at a time, with the time since when (KIP-960).

        Raises ``UsageError`` where the store keeps no versions.
        """
        found: VersionedRecord | None = None
        for store in self.buckets.values():
            if not isinstance(store, VersionedStore):
                raise UsageError(f"the store {self.described.name} keeps no versions: ask without as_of")
            stored = store.get(key, None if as_of is None else to_ms(as_of))
            if stored is not None:
                found = VersionedRecord(stored.value, stored.timestamp)
        return found

    def range(self, low: Any = None, high: Any = None) -> list[StoreEntry]:
        """The entries from key ``low`` to ``high``, both included, in the order of the keys' bytes; None: no end."""
        return [entry for entry in self.all() if _within(_bare(entry.key), low, high)]

    def all(self) -> list[StoreEntry]:
        """All entries, by key and window."""
        return list(self._by_key.values())

    def fetch(self, key: Any, since: Time | None = None, until: Time | None = None) -> list[StoreEntry]:
        """A key's windows that start from ``since`` to ``until``, both included, or its sessions that overlap these.

        Raises ``UsageError`` for a store without windows.
        """
        return [entry for entry in self.fetch_all(since, until) if _bare(entry.key) == key]

    def fetch_all(self, since: Time | None = None, until: Time | None = None) -> list[StoreEntry]:
        """As ``fetch``, of all keys."""
        if not self.described.windowed:
            raise UsageError(f"the store {self.described.name} has no windows: ask for keys alone")
        since_ms, until_ms = (None if time is None else to_ms(time) for time in (since, until))
        is_session = self.described.kind == "session" or self.described.layout.sessions
        return [
            entry
            for entry in self.all()
            if (since_ms is None or (entry.key.end if is_session else entry.key.start) >= since_ms)
            and (until_ms is None or entry.key.start <= until_ms)
        ]

    def frame(self, entries: list[StoreEntry] | None = None) -> pl.DataFrame:
        """Entries, or all of them, in columns: of the key, its window, the value, and the ``timestamp``."""
        return frame_of(self.all() if entries is None else entries, self.described)

    @cached_property
    def _by_key(self) -> dict[Any, StoreEntry]:
        if self.described.kind == "buffer":
            raise UsageError(
                f"the store {self.described.name} is what {self.described.node} keeps for itself and has no values by "
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
        """All stores by name."""
        return {store.name: store for store in self.manifest.stores}

    def store(self, name: str) -> QueryableStore:
        """A store by name. Raises ``UsageError`` naming those that there are."""
        if name not in self._stores:
            described = self.manifest.store(name)
            self._stores[name] = QueryableStore(described, self._read(described))
        return self._stores[name]


@contextmanager
def open_state(
    checkpoint: str | Path, *, spark: SparkSession | None = None, batch: int | None = None
) -> Iterator[StoredState]:
    """Open the state of a topology's checkpoint as it was after its last committed batch, or after ``batch``.

    ``checkpoint`` is a path, or the URI of any file system that Spark reaches. ``spark`` is the session that reads;
    without one it is the active session, or one that lives as long as this.

    Raises ``UsageError`` for a directory that is no such checkpoint, and for a batch that is not there.
    """
    if is_mounted(checkpoint):
        # What is no checkpoint is refused before a session is begun.
        _opened(checkpoint_files(checkpoint, None), batch)
    with reading_session(spark) as session:
        files = checkpoint_files(checkpoint, session)
        manifest, number = _opened(files, batch)
        yield StoredState(
            files.location, number, manifest, lambda described: read_store(session, files, described, number)
        )


def stored_manifest(checkpoint: str | Path) -> Manifest:
    """What a checkpoint says of its topology; a session is begun only where there is no other way to read it.

    Raises ``UsageError`` for a directory that is no such checkpoint.
    """
    if is_mounted(checkpoint):
        return manifest_of(checkpoint_files(checkpoint, None))
    with reading_session(None) as session:
        return manifest_of(checkpoint_files(checkpoint, session))


def _opened(files: CheckpointFiles, batch: int | None) -> tuple[Manifest, int]:
    return manifest_of(files), committed_batch(files, batch)


def to_ms(time: Time) -> int:
    """An instant in ms since 1970."""
    if isinstance(time, int):
        return time
    aware = time if time.tzinfo is not None else time.replace(tzinfo=dt.UTC)
    return (aware - dt.datetime(1970, 1, 1, tzinfo=dt.UTC)) // dt.timedelta(milliseconds=1)


def _bare(key: Any) -> Any:
    return key.key if isinstance(key, Windowed) else key


def _within(key: Any, low: Any, high: Any) -> bool:
    place = sort_key(key)
    return (low is None or place >= sort_key(low)) and (high is None or place <= sort_key(high))
