"""Interface of the metadata store, with ZooKeeper's semantics.

Nodes form a tree of absolute paths (``/brokers/topics/orders``). Each holds bytes and has a version that every write
increases by one. The store guarantees (ZooKeeper programmer's guide, "Consistency Guarantees"):

* Writes are applied in sequence. Each is durable when its call returns, and ``multi`` is all or nothing.
* An ephemeral node lives as long as the session that created it, and has no children.
* A sequential node gets a ten-digit suffix that is larger than that of every earlier child of its parent.
* A watch fires at most once, for the first change after the read that set it, in the order of the changes. Changes
  during a lost connection are reported after the reconnect, in no order.

All methods may be called from any thread and block until they are done. Therefore an event loop calls them in threads
and receives watches through ``OnLoop``. Methods raise ``SessionExpiredError`` after the session has ended. Its
ephemeral nodes and watches are then removed. A session never becomes another session, and no request of it is executed
under a later session. A later session has another ``session_id``, and other ephemeral nodes, watches and listeners.

A remote store can be disconnected. Reads are then retried, and unsent requests wait, for the time that the store's
configuration allows; after that ``ConnectionLossError`` is raised. It is raised at once for a write without a response,
because its outcome is unknown. ``millrace.coordination.outcomes`` determines the outcome. The outcome is also unknown
if the session expires during a write, but its ephemeral nodes are removed in any case.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final, Protocol

from millrace.errors import MillraceError

ANY_VERSION: Final = -1
"""Expected version that matches any version."""


class CoordinationError(MillraceError):
    """Base of refused coordination calls. These errors never reach a client of the broker directly."""


class NoNodeError(CoordinationError):
    """The node, or the parent of the node to create, is missing."""


class NodeExistsError(CoordinationError):
    """The node to create already exists, because another caller created it first."""


class BadVersionError(CoordinationError):
    """The node was changed since the version that the caller read."""


class NotEmptyError(CoordinationError):
    """The node to delete has children."""


class NoChildrenForEphemeralsError(CoordinationError):
    """The parent of the node to create is ephemeral. It cannot have children."""


class SessionExpiredError(CoordinationError):
    """The session has ended; its ephemeral nodes and watches are removed. A new session must be opened."""


class ConnectionLossError(CoordinationError):
    """The store gave no response. ``maybe_applied`` means that a write may have been, or may still be, applied."""

    def __init__(self, message: str, *, maybe_applied: bool) -> None:
        super().__init__(message)
        self.maybe_applied = maybe_applied


class AccessDeniedError(CoordinationError):
    """The store refuses the credentials, or they do not permit the operation."""


class SessionState(StrEnum):
    """State of a session with its store."""

    CONNECTED = "connected"
    SUSPENDED = "suspended"
    """The connection is lost. Only the store knows whether the session has ended or continues."""
    EXPIRED = "expired"
    """The store ended the session; a new session must be opened."""
    CLOSED = "closed"


class EventType(StrEnum):
    """Type of a change of a watched node."""

    CREATED = "created"
    DELETED = "deleted"
    CHANGED = "changed"
    CHILDREN = "children"


@dataclass(frozen=True, slots=True)
class WatchEvent:
    """Single notification of a watch. The watcher must read the new state."""

    type: EventType
    path: str


Watch = Callable[[WatchEvent], None]
"""Watch callback, called once in a thread of the store. It may read, write and watch, but not block for long."""


@dataclass(frozen=True, slots=True)
class OnLoop:
    """Watch or state listener that an event loop calls, in order.

    Two with the same loop and function are the same watch.
    """

    loop: asyncio.AbstractEventLoop
    call: Callable[[Any], None]

    def __call__(self, told: object) -> None:
        """Schedule the call on the loop; a closed loop is ignored."""
        if not self.loop.is_closed():
            self.loop.call_soon_threadsafe(self.call, told)


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeStat:
    """A node's stat. ``version`` counts writes of the data; ``children_version`` counts changes of the children."""

    version: int
    children_version: int
    created_id: int
    modified_id: int
    created_ms: int
    modified_ms: int
    ephemeral_owner: int
    children: int


@dataclass(frozen=True, slots=True)
class Create:
    """Creation of a node. Fails if the node exists or its parent does not."""

    path: str
    data: bytes = b""
    ephemeral: bool = False
    sequential: bool = False


@dataclass(frozen=True, slots=True)
class Write:
    """Replacement of a node's data, if its version is the expected one."""

    path: str
    data: bytes
    version: int = ANY_VERSION


@dataclass(frozen=True, slots=True)
class Delete:
    """Deletion of a node without children. Its version must be ``version``."""

    path: str
    version: int = ANY_VERSION


@dataclass(frozen=True, slots=True)
class Check:
    """Check of a node's version, which fails the whole transaction otherwise."""

    path: str
    version: int = ANY_VERSION


Operation = Create | Write | Delete | Check


class Coordination(Protocol):
    """Session with the store."""

    @property
    def state(self) -> SessionState:
        """Locally known state of the session."""
        ...

    @property
    def session_id(self) -> int:
        """Session id, which is the ``ephemeral_owner`` of the session's ephemeral nodes."""
        ...

    def create(self, path: str, data: bytes = b"", *, ephemeral: bool = False, sequential: bool = False) -> str:
        """Create a node and return its path (with the suffix, if sequential).

        Raises ``NodeExistsError``, ``NoNodeError`` (no parent), ``NoChildrenForEphemeralsError``.
        """
        ...

    def get(self, path: str, watch: Watch | None = None) -> tuple[bytes, NodeStat]:
        """Read a node; ``watch`` fires when it is written or deleted. Raises ``NoNodeError`` without setting the
        watch.
        """
        ...

    def get_many(self, paths: Sequence[str]) -> list[tuple[bytes, NodeStat] | None]:
        """Read many nodes with pipelined requests; None for those that do not exist.

        Each result is from some time during the call, but not all from the same time.
        """
        ...

    def set(self, path: str, data: bytes, version: int = ANY_VERSION) -> NodeStat:
        """Write a node. Raises ``NoNodeError``, ``BadVersionError``."""
        ...

    def delete(self, path: str, version: int = ANY_VERSION) -> None:
        """Delete a node. Raises ``NoNodeError``, ``BadVersionError``, ``NotEmptyError``."""
        ...

    def exists(self, path: str, watch: Watch | None = None) -> NodeStat | None:
        """Return the node's stat, or None; ``watch`` fires when the node is created, written or deleted."""
        ...

    def children(self, path: str, watch: Watch | None = None) -> list[str]:
        """Return the sorted names of the children; ``watch`` fires when a child is created or deleted, or the node is
        deleted.

        Raises ``NoNodeError`` without setting the watch.
        """
        ...

    def multi(self, operations: Sequence[Operation]) -> list[str | NodeStat | None]:
        """Apply all operations or none, as one change; returns each one's result (path, stat, None, None).

        Raises the error of the first failing operation.
        """
        ...

    def sync(self) -> None:
        """Ensure that later reads see all writes that any session completed before this call."""
        ...

    def on_state(self, listener: Callable[[SessionState], None]) -> None:
        """Register ``listener`` for later states; calls are in order with watches, and in the same thread."""
        ...

    def on_session_end(self, listener: Callable[[], None]) -> None:
        """Register ``listener``, called once when the session expires (not when it is closed); at once if it has
        expired.
        """
        ...

    def close(self) -> None:
        """End the session and delete its ephemeral nodes. A second call has no effect."""
        ...


class SessionStore(Protocol):
    """Store that opens sessions, for example a ZooKeeper ensemble."""

    def connect(self) -> Coordination:
        """Open a session. Raises ``EnvironmentProblemError`` if the store cannot be reached."""
        ...

    def close(self) -> None:
        """End all sessions of this store."""
        ...


def ensure_path(coordination: Coordination, path: str) -> None:
    """Create ``path`` and its parents as empty persistent nodes, if they do not exist."""
    names = path.strip("/").split("/")
    for depth in range(1, len(names) + 1):
        node = "/" + "/".join(names[:depth])
        if coordination.exists(node) is None:
            try:
                coordination.create(node)
            except NodeExistsError:
                continue  # another session created it
