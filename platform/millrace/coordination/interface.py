"""What the cluster's metadata is kept in: ZooKeeper's semantics as an interface.

Nodes form a tree of absolute paths (``/brokers/topics/orders``). Each holds bytes and has a version that every write
raises by one. The promises that everything above relies on (ZooKeeper programmer's guide, "Consistency Guarantees"):

* Writes are applied one after the other; each is durable when its call returns, and ``multi`` is all or nothing.
* An ephemeral node lives as long as the session that created it, and has no children.
* A sequential node gets a ten-digit suffix that is larger than that of every earlier child of its parent.
* A watch fires at most once, for the first change after the read that left it, in the order of the changes. What
  changed while the connection was lost is told once it is back, in no order.

All methods may be called from any thread and block until they are done, so an event loop calls them in threads of its
own and has watches called ``OnLoop``. They raise ``SessionExpiredError`` once the session is over: then every ephemeral
node of it is gone, and so are its watches. A session never becomes another: nothing that was asked of it is done
under the next, which has another ``session_id`` and knows nothing of its ephemerals, watches and listeners.

A store that is elsewhere can be lost sight of. Reads are then repeated, and what was not sent yet waits, for as long as
the store's configuration says; after that ``ConnectionLossError`` is raised. It is raised at once for a write whose
answer did not come: nobody knows whether it was done. ``millrace.coordination.outcomes`` finds out. The same goes for a
write during which the session expires, and there the ephemeral part is gone in any case.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final, Protocol

from millrace.errors import MillraceError

ANY_VERSION: Final = -1
"""As an expected version: whatever the version is."""


class CoordinationError(MillraceError):
    """Base of what a coordination call refuses. It never reaches a client of the broker as it is."""


class NoNodeError(CoordinationError):
    """The node, or the parent of the node to create, does not exist."""


class NodeExistsError(CoordinationError):
    """The node to create exists already: somebody else won."""


class BadVersionError(CoordinationError):
    """The node was changed since the version that the caller read."""


class NotEmptyError(CoordinationError):
    """A node with children cannot be deleted."""


class NoChildrenForEphemeralsError(CoordinationError):
    """An ephemeral node cannot have children."""


class SessionExpiredError(CoordinationError):
    """The session is over; ephemeral nodes and watches are gone. A new session must be opened."""


class ConnectionLossError(CoordinationError):
    """The store gave no answer. ``maybe_applied``: whether a write may have been, or may still be, carried out."""

    def __init__(self, message: str, *, maybe_applied: bool) -> None:
        super().__init__(message)
        self.maybe_applied = maybe_applied


class AccessDeniedError(CoordinationError):
    """The store does not take these credentials, or they may not do this to the node."""


class SessionState(StrEnum):
    """How a session stands with its store."""

    CONNECTED = "connected"
    SUSPENDED = "suspended"
    """The connection is lost. The session may be over already, or go on: only the store knows."""
    EXPIRED = "expired"
    """Over, not by our will; a new session has to be opened."""
    CLOSED = "closed"


class EventType(StrEnum):
    """What happened to a watched node."""

    CREATED = "created"
    DELETED = "deleted"
    CHANGED = "changed"
    CHILDREN = "children"


@dataclass(frozen=True, slots=True)
class WatchEvent:
    """The one notification of a watch. It does not hold the new state: who wants that, reads again."""

    type: EventType
    path: str


Watch = Callable[[WatchEvent], None]
"""Called once, from a thread of the store's choosing. It may read, write and watch again, but not block for long."""


@dataclass(frozen=True, slots=True)
class OnLoop:
    """A watch, or a listener to states, that is called on an event loop, in the same order.

    Two of the same loop and function are the same watch.
    """

    loop: asyncio.AbstractEventLoop
    call: Callable[[Any], None]

    def __call__(self, told: object) -> None:
        """Hand ``told`` over to the loop. Nobody is left to be told when the loop is closed."""
        if not self.loop.is_closed():
            self.loop.call_soon_threadsafe(self.call, told)


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeStat:
    """A node's bookkeeping. ``version`` counts writes of the data; ``children_version`` changes of the children."""

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
    """Create a node. Fails when it exists or its parent does not."""

    path: str
    data: bytes = b""
    ephemeral: bool = False
    sequential: bool = False


@dataclass(frozen=True, slots=True)
class Write:
    """Replace a node's data, if its version is the expected one."""

    path: str
    data: bytes
    version: int = ANY_VERSION


@dataclass(frozen=True, slots=True)
class Delete:
    """Delete a node without children, if its version is the expected one."""

    path: str
    version: int = ANY_VERSION


@dataclass(frozen=True, slots=True)
class Check:
    """Fail the whole transaction unless the node exists with this version."""

    path: str
    version: int = ANY_VERSION


Operation = Create | Write | Delete | Check


class Coordination(Protocol):
    """One session with the store."""

    @property
    def state(self) -> SessionState:
        """How the session stands, as far as is known here."""
        ...

    @property
    def session_id(self) -> int:
        """Number of the session, the ``ephemeral_owner`` of its ephemeral nodes."""
        ...

    def create(self, path: str, data: bytes = b"", *, ephemeral: bool = False, sequential: bool = False) -> str:
        """Create a node and return its path (with the suffix, if sequential).

        Raises ``NodeExistsError``, ``NoNodeError`` (no parent), ``NoChildrenForEphemeralsError``.
        """
        ...

    def get(self, path: str, watch: Watch | None = None) -> tuple[bytes, NodeStat]:
        """Read a node; ``watch`` fires when it is written or deleted. Raises ``NoNodeError``, leaving no watch."""
        ...

    def get_many(self, paths: Sequence[str]) -> list[tuple[bytes, NodeStat] | None]:
        """Read nodes without waiting for each in turn; None for those that do not exist.

        Each is as it was at some time during the call, not all at the same.
        """
        ...

    def set(self, path: str, data: bytes, version: int = ANY_VERSION) -> NodeStat:
        """Write a node. Raises ``NoNodeError``, ``BadVersionError``."""
        ...

    def delete(self, path: str, version: int = ANY_VERSION) -> None:
        """Delete a node. Raises ``NoNodeError``, ``BadVersionError``, ``NotEmptyError``."""
        ...

    def exists(self, path: str, watch: Watch | None = None) -> NodeStat | None:
        """The node's bookkeeping, or None; ``watch`` fires when it is created, written or deleted."""
        ...

    def children(self, path: str, watch: Watch | None = None) -> list[str]:
        """Sorted names of the children; ``watch`` fires when one comes or goes, or the node is deleted.

        Raises ``NoNodeError``, leaving no watch.
        """
        ...

    def multi(self, operations: Sequence[Operation]) -> list[str | NodeStat | None]:
        """Apply all operations or none, as one change; returns each one's result (path, stat, None, None).

        Raises what the first failing operation raises.
        """
        ...

    def sync(self) -> None:
        """Have all reads that follow see what any session's writes did before this call."""
        ...

    def on_state(self, listener: Callable[[SessionState], None]) -> None:
        """Have ``listener`` called with each state that follows, in order with the watches, as watches are."""
        ...

    def on_session_end(self, listener: Callable[[], None]) -> None:
        """Have ``listener`` called once, when the session expires (not when it is closed); at once if it has."""
        ...

    def close(self) -> None:
        """End the session: its ephemeral nodes are deleted. Closing twice does nothing."""
        ...


class SessionStore(Protocol):
    """Where sessions are opened: an ensemble, or what stands for one."""

    def connect(self) -> Coordination:
        """Open a session. Raises ``EnvironmentProblemError`` when the store cannot be reached."""
        ...

    def close(self) -> None:
        """End all sessions that were opened here."""
        ...


def ensure_path(coordination: Coordination, path: str) -> None:
    """Create ``path`` and its parents as empty persistent nodes, where they do not exist."""
    names = path.strip("/").split("/")
    for depth in range(1, len(names) + 1):
        node = "/" + "/".join(names[:depth])
        if coordination.exists(node) is None:
            try:
                coordination.create(node)
            except NodeExistsError:
                continue  # another session was faster, which is as good
