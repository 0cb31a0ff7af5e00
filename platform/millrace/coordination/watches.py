"""Watches of nodes, and the order of their calls.

Invariants

* A watch is removed before it is called, so it fires at most once.
* Watches fire in the order of the changes, and for one change in the order in which they were set.
* The same function of the same session on the same node is one watch, as in ZooKeeper.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from functools import partial
from threading import Lock

from millrace.coordination.interface import EventType, Watch, WatchEvent

_Watchers = dict[str, dict[tuple[int, Watch], None]]


class WatchTable:
    """Watches of all sessions. Not thread safe: the store's lock guards it."""

    def __init__(self) -> None:
        self._of_data: _Watchers = {}
        self._of_children: _Watchers = {}

    def watch_data(self, path: str, session_id: int, watch: Watch) -> None:
        """Set a watch for creation, write and deletion of ``path``."""
        self._of_data.setdefault(path, {})[session_id, watch] = None

    def watch_children(self, path: str, session_id: int, watch: Watch) -> None:
        """Set a watch for creation and deletion of children of ``path``, and for its deletion."""
        self._of_children.setdefault(path, {})[session_id, watch] = None

    def take(self, events: Iterable[WatchEvent]) -> list[Callable[[], None]]:
        """Remove the watches that ``events`` fire; returns the calls to make, in order."""
        calls: list[Callable[[], None]] = []
        for event in events:
            fired: dict[tuple[int, Watch], None] = {}
            if event.type is not EventType.CHILDREN:
                fired |= self._of_data.pop(event.path, {})
            if event.type in (EventType.CHILDREN, EventType.DELETED):
                fired |= self._of_children.pop(event.path, {})
            calls += [partial(watch, event) for _, watch in fired]
        return calls

    def forget(self, session_id: int) -> None:
        """Drop the watches of a session that has ended."""
        for table in (self._of_data, self._of_children):
            for path in list(table):
                table[path] = {key: None for key in table[path] if key[0] != session_id}
                if not table[path]:
                    del table[path]

    def __len__(self) -> int:
        return sum(len(watchers) for table in (self._of_data, self._of_children) for watchers in table.values())


class Deliveries:
    """Sequential execution of queued calls outside the store's lock.

    The thread that queued calls makes them, and those that other threads queue meanwhile. So no extra thread is
    needed, and in a single thread (a simulation) the order is deterministic. A call may change the store; resulting
    calls are queued behind it.
    """

    def __init__(self, on_failure: Callable[[BaseException], None]) -> None:
        self._calls: deque[Callable[[], None]] = deque()
        self._delivering = False
        self._lock = Lock()
        self._on_failure = on_failure

    def queue(self, calls: Iterable[Callable[[], None]]) -> None:
        """Queue calls without making them; the caller holds the store's lock, which defines the order."""
        with self._lock:
            self._calls.extend(calls)

    def deliver(self) -> None:
        """Make all queued calls, unless another frame or thread is doing so."""
        with self._lock:
            if self._delivering:
                return
            self._delivering = True
        while True:
            with self._lock:
                if not self._calls:
                    self._delivering = False
                    return
                call = self._calls.popleft()
            try:
                call()
            except Exception as error:  # noqa: BLE001 - an error of a watch must not stop the others
                self._on_failure(error)
