"""Coordination store inside one process.

A single broker without ZooKeeper and tests use it. ``EmbeddedStore`` is the service, ``EmbeddedCoordination`` a session
with it. With a file, every change is on disk before its call returns. Without a file, all data is lost at the end of
the process.

Invariants

* The tree is changed only under ``_lock``, and equals the file whenever the lock is free.
* A change that cannot be saved is not visible, and the store refuses all further changes. A commit may have failed
  half-way, so only the next start shows whether the file contains the change.
* Watches are queued under the lock (so in the order of changes) and called outside it.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from threading import RLock
from typing import Final

from millrace.coordination.interface import (
    Delete,
    NodeStat,
    Operation,
    SessionExpiredError,
    SessionState,
    Watch,
)
from millrace.coordination.single_calls import SingleCalls
from millrace.coordination.storage import TreeFile
from millrace.coordination.tree import Tree, check_path
from millrace.coordination.watches import Deliveries, WatchTable
from millrace.errors import StorageError

_logger = logging.getLogger(__name__)

METADATA_FILE: Final = "millrace-metadata.sqlite"
"""Name of the store's file in a broker's data directory."""


class EmbeddedStore:
    """A tree of nodes with sessions, in this process.

    ``now_ms`` returns the time for node timestamps. Raises ``EnvironmentProblemError`` if the file is in use by
    another process, is not writable, or has another format.
    """

    def __init__(self, path: Path | None = None, *, now_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000):
        self._file = TreeFile(path) if path is not None else None
        self._tree = self._file.load() if self._file is not None else Tree()
        self._now_ms = now_ms
        self._lock = RLock()
        self._watches = WatchTable()
        self._deliveries = Deliveries(lambda error: _logger.error("a watch failed", exc_info=error))
        self._sessions: dict[int, EmbeddedCoordination] = {}
        self._last_session_id = 0
        self._failure: StorageError | None = None

    def connect(self) -> EmbeddedCoordination:
        """Open a session."""
        with self._lock:
            if self._file is not None:
                self._last_session_id = self._file.next_session_id()
            else:
                self._last_session_id += 1
            session = EmbeddedCoordination(self, self._last_session_id)
            self._sessions[session.session_id] = session
        return session

    def expire(self, session_id: int) -> None:
        """Expire a session like ZooKeeper after a session timeout, for tests and simulations."""
        self._end(session_id, expired=True)

    def close(self) -> None:
        """End all sessions and close the file."""
        for session_id in list(self._sessions):
            self._end(session_id, expired=False)
        if self._file is not None:
            self._file.close()

    # The following methods are for EmbeddedCoordination.

    def _apply(self, session_id: int, operations: Sequence[Operation]) -> list[str | NodeStat | None]:
        with self._lock:
            self._check_session(session_id)
            results = self._commit(session_id, operations)
        self._deliveries.deliver()
        return results

    def _commit(self, session_id: int, operations: Sequence[Operation]) -> list[str | NodeStat | None]:
        if self._failure is not None:
            raise StorageError(f"{self._failure.message}; restart the broker before you change metadata")
        change = self._tree.apply(
            operations, owner=session_id, now_ms=self._now_ms(), save=self._save if self._file is not None else None
        )
        self._deliveries.queue(self._watches.take(change.events))
        return change.results

    def _save(self, paths: frozenset[str]) -> None:
        assert self._file is not None
        try:
            self._file.save(self._tree, paths)
        except StorageError as error:
            self._failure = error
            raise

    def _read_data(self, session_id: int, path: str, watch: Watch | None) -> tuple[bytes, NodeStat]:
        with self._lock:
            self._check_session(session_id)
            node = self._tree.node(path)
            if watch is not None:
                self._watches.watch_data(path, session_id, watch)
            return node.data, node.stat()

    def _read_stat(self, session_id: int, path: str, watch: Watch | None) -> NodeStat | None:
        check_path(path)
        with self._lock:
            self._check_session(session_id)
            if watch is not None:
                self._watches.watch_data(path, session_id, watch)
            node = self._tree.nodes.get(path)
            return node.stat() if node is not None else None

    def _read_children(self, session_id: int, path: str, watch: Watch | None) -> list[str]:
        with self._lock:
            self._check_session(session_id)
            names = sorted(self._tree.node(path).children)
            if watch is not None:
                self._watches.watch_children(path, session_id, watch)
            return names

    def _check_open(self, session_id: int) -> None:
        with self._lock:
            self._check_session(session_id)

    def _check_session(self, session_id: int) -> None:
        if session_id not in self._sessions:
            raise SessionExpiredError(f"session {session_id} has ended: open a new one")

    def _end(self, session_id: int, *, expired: bool) -> None:
        with self._lock:
            session = self._sessions.pop(session_id, None)
            if session is None:
                return
            self._watches.forget(session_id)
            ephemerals = self._tree.ephemerals_of(session_id)
            if ephemerals and self._failure is None:
                self._commit(session_id, [Delete(path) for path in ephemerals])
            self._deliveries.queue(session._end(SessionState.EXPIRED if expired else SessionState.CLOSED))
        self._deliveries.deliver()

    def _listen(self, session: EmbeddedCoordination, listener: Callable[[], None]) -> None:
        with self._lock:
            if session.state is SessionState.EXPIRED:
                self._deliveries.queue([listener])
            else:
                session.end_listeners.append(listener)
        self._deliveries.deliver()


class EmbeddedCoordination(SingleCalls):
    """A session with an ``EmbeddedStore``; ``Coordination`` documents each method."""

    def __init__(self, store: EmbeddedStore, session_id: int) -> None:
        self._store = store
        self._session_id = session_id
        self._state = SessionState.CONNECTED
        self._state_listeners: list[Callable[[SessionState], None]] = []
        self.end_listeners: list[Callable[[], None]] = []

    @property
    def state(self) -> SessionState:
        """State of the session: it is connected until it ends."""
        return self._state

    @property
    def session_id(self) -> int:
        """Session id."""
        return self._session_id

    def get(self, path: str, watch: Watch | None = None) -> tuple[bytes, NodeStat]:
        """Read a node."""
        return self._store._read_data(self._session_id, path, watch)

    def exists(self, path: str, watch: Watch | None = None) -> NodeStat | None:
        """Return the node's stat, or None."""
        return self._store._read_stat(self._session_id, path, watch)

    def children(self, path: str, watch: Watch | None = None) -> list[str]:
        """Return the sorted names of the children."""
        return self._store._read_children(self._session_id, path, watch)

    def multi(self, operations: Sequence[Operation]) -> list[str | NodeStat | None]:
        """Apply all operations or none."""
        return self._store._apply(self._session_id, operations)

    def sync(self) -> None:
        """Return at once, because all sessions see the same tree."""
        self._store._check_open(self._session_id)

    def on_state(self, listener: Callable[[SessionState], None]) -> None:
        """Register ``listener`` for the end of the session."""
        self._state_listeners.append(listener)

    def on_session_end(self, listener: Callable[[], None]) -> None:
        """Register ``listener``, which is called once when the session expires."""
        self._store._listen(self, listener)

    def close(self) -> None:
        """End the session."""
        self._store._end(self._session_id, expired=False)

    def _end(self, state: SessionState) -> list[Callable[[], None]]:
        """Set the final state; returns the calls to make. The caller holds the store's lock."""
        self._state = state
        calls = [partial(listener, state) for listener in self._state_listeners]
        if state is SessionState.CLOSED:
            return [*calls]
        return [*calls, *self.end_listeners]
