"""kazoo, as a session needs it: what it calls and connects with, which errors it raises, which nodes belong to whom.

kazoo's client opens a new session of itself when the old one has expired, and calls watches in a thread that knows
nothing of changes of state. Both are settled here, by the *handler* that it takes for all it does with threads and
sockets.
"""

from __future__ import annotations

import socket
import ssl
import threading
from collections.abc import Callable, Sequence
from typing import Any, Final

from kazoo import exceptions as kazoo
from kazoo.handlers.threading import KazooTimeoutError, SequentialThreadingHandler
from kazoo.security import CREATOR_ALL_ACL, OPEN_ACL_UNSAFE, READ_ACL_UNSAFE

from millrace.coordination.interface import (
    AccessDeniedError,
    BadVersionError,
    ConnectionLossError,
    CoordinationError,
    NoChildrenForEphemeralsError,
    NodeExistsError,
    NodeStat,
    NoNodeError,
    NotEmptyError,
    SessionExpiredError,
)
from millrace.errors import InvalidRequestError, MillraceError

CONNECTION_LOST: Final = (kazoo.ConnectionLoss, kazoo.ConnectionClosedError, KazooTimeoutError)
"""What kazoo raises when no answer came."""

NOT_AT_FAULT: Final = (kazoo.RolledBackError, kazoo.RuntimeInconsistency)
"""What the operations of a transaction have as results that are not the reason why it failed."""

_SENSITIVE_PATHS: Final = ("/config/users", "/config/brokers", "/delegation_token/tokens")


class SessionHandler(SequentialThreadingHandler):  # type: ignore[misc]
    """kazoo's threads and sockets for one session.

    Events are handed to ``on_event`` in the connection's own thread, so that they and changes of state have one order.
    After ``refuse_connections`` there is no way to the ensemble any more, so that no other session can be had.
    """

    def __init__(self, tls: ssl.SSLContext | None, on_event: Callable[[Any, Any], None]) -> None:
        super().__init__()
        self._tls = tls
        self._on_event = on_event
        self._refuse = threading.Event()

    def refuse_connections(self) -> None:
        """Make no connection from now on."""
        self._refuse.set()

    def create_connection(
        self, address: tuple[str, int], hostname: str | None = None, timeout: float | None = None, **_: object
    ) -> socket.socket:
        """Connect, with TLS if configured. Raises ``OSError``."""
        if self._refuse.is_set():
            raise OSError("the session is over")
        connection = socket.create_connection(address, timeout)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if self._tls is None:
            return connection
        try:
            return self._tls.wrap_socket(connection, server_hostname=hostname or address[0])
        except BaseException:
            connection.close()
            raise

    def dispatch_callback(self, callback: Any) -> None:
        """Take an event for a watch."""
        self._on_event(callback.func, *callback.args)


class Together:
    """The results of several reads that were sent one behind the other, as one; None for nodes that do not exist."""

    def __init__(self, results: Sequence[Any]) -> None:
        self._results: Final = results

    def get(self, timeout: float) -> list[Any]:
        """All answers, or the first error that is not about a missing node."""
        return [self._get(result, timeout) for result in self._results]

    def _get(self, result: Any, timeout: float) -> Any:
        try:
            return result.get(timeout=timeout)
        except kazoo.NoNodeError:
            return None

    def ready(self) -> bool:
        """Whether all have been answered."""
        return all(result.ready() for result in self._results)

    def set_exception(self, error: BaseException) -> None:
        """Have those fail that are not answered yet."""
        for result in self._results:
            if not result.ready():
                result.set_exception(error)


def node_stat(stat: Any) -> NodeStat | None:
    """ZooKeeper's bookkeeping of a node as ours."""
    if stat is None:
        return None
    return NodeStat(
        version=stat.version,
        children_version=stat.cversion,
        created_id=stat.czxid,
        modified_id=stat.mzxid,
        created_ms=stat.ctime,
        modified_ms=stat.mtime,
        ephemeral_owner=stat.ephemeralOwner,
        children=stat.numChildren,
    )


def acls(path: str, *, secure: bool) -> list[Any]:
    """Who may do what with a node: as Kafka (``ZkData.defaultAcls``), which hides the nodes that hold secrets."""
    if not secure:
        return list(OPEN_ACL_UNSAFE)
    if any(path.startswith(sensitive) for sensitive in _SENSITIVE_PATHS):
        return list(CREATOR_ALL_ACL)
    return [*CREATOR_ALL_ACL, *READ_ACL_UNSAFE]


_MESSAGES: Final[dict[Any, tuple[type[MillraceError], str]]] = {
    kazoo.NoNodeError: (NoNodeError, "{path} does not exist, or the node that is to hold it"),
    kazoo.NodeExistsError: (NodeExistsError, "{path} exists already"),
    kazoo.BadVersionError: (BadVersionError, "{path} has another version than {version}: read it again"),
    kazoo.NotEmptyError: (NotEmptyError, "{path} has children and cannot be deleted before them"),
    kazoo.NoChildrenForEphemeralsError: (
        NoChildrenForEphemeralsError,
        "the node that is to hold {path} is ephemeral and cannot",
    ),
    kazoo.BadArgumentsError: (InvalidRequestError, "ZooKeeper takes {path} for no node path"),
    kazoo.NoAuthError: (AccessDeniedError, "ZooKeeper denies access to {path}: check its ACL and zookeeper.sasl.*"),
    kazoo.AuthFailedError: (AccessDeniedError, "ZooKeeper does not take our credentials: check zookeeper.sasl.*"),
    kazoo.SessionExpiredError: (SessionExpiredError, "the session was over at {path}: open a new one"),
}


def error_of(error: BaseException, path: str, version: int) -> MillraceError:
    """Ours for what ZooKeeper answered to an operation on ``path`` that expected ``version``."""
    for kind, (ours, message) in _MESSAGES.items():
        if isinstance(error, kind):
            return ours(message.format(path=path, version=version))
    if isinstance(error, kazoo.SessionMovedError):
        return ConnectionLossError(f"another connection took the session over before {path}", maybe_applied=False)
    return CoordinationError(f"ZooKeeper refused an operation on {path}: {error!r}")
