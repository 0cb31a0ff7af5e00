"""Adapter of kazoo to a session: connections, events, errors and ACLs.

kazoo's client opens a new session by itself after an expiry, and calls watches in a thread without order to state
changes. The *handler*, which kazoo uses for all threads and sockets, prevents both.
"""

from __future__ import annotations

import contextlib
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
from millrace.security import Reloading

CONNECTION_LOST: Final = (kazoo.ConnectionLoss, kazoo.ConnectionClosedError, KazooTimeoutError)
"""kazoo's errors for a missing response."""

NOT_AT_FAULT: Final = (kazoo.RolledBackError, kazoo.RuntimeInconsistency)
"""Results of a transaction's operations that are not the cause of its failure."""

_SENSITIVE_PATHS: Final = ("/config/users", "/config/brokers", "/delegation_token/tokens")


class SessionHandler(SequentialThreadingHandler):  # type: ignore[misc]
    """kazoo's threads and sockets for one session.

    Events are passed to ``on_event`` in the connection's own thread, so that they and state changes have one order.
    After ``refuse_connections`` no connection to the ensemble is possible, and so no other session.
    """

    def __init__(self, tls: Reloading[ssl.SSLContext] | None, on_event: Callable[[Any, Any], None]) -> None:
        super().__init__()
        self._tls = tls
        self._on_event = on_event
        self._refuse = threading.Event()

    def refuse_connections(self) -> None:
        """Refuse all new connections."""
        self._refuse.set()

    def spawn(self, func: Callable[..., Any], *args: Any, **kwargs: Any) -> threading.Thread:
        """Start a thread of kazoo. A server that demands SASL and refuses the credentials ends it without an error."""

        def run() -> None:
            with contextlib.suppress(kazoo.SessionClosedRequireSaslError):  # kazoo has logged it
                func(*args, **kwargs)

        thread: threading.Thread = super().spawn(run)
        return thread

    def create_connection(
        self, address: tuple[str, int], hostname: str | None = None, timeout: float | None = None, **_: object
    ) -> socket.socket:
        """Connect, with TLS if configured. Raises ``OSError``."""
        if self._refuse.is_set():
            raise OSError("the session has expired")
        connection = socket.create_connection(address, timeout)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if self._tls is None:
            return connection
        try:
            return self._tls.current().wrap_socket(connection, server_hostname=hostname or address[0])
        except BaseException:
            connection.close()
            raise

    def dispatch_callback(self, callback: Any) -> None:
        """Pass an event of a watch to ``on_event``."""
        self._on_event(callback.func, *callback.args)


class Together:
    """Combined results of several pipelined reads. A missing node gives None."""

    def __init__(self, results: Sequence[Any]) -> None:
        self._results: Final = results

    def get(self, timeout: float) -> list[Any]:
        """Return all responses, or raise the first error that is not about a missing node."""
        return [self._get(result, timeout) for result in self._results]

    def _get(self, result: Any, timeout: float) -> Any:
        try:
            return result.get(timeout=timeout)
        except kazoo.NoNodeError:
            return None

    def ready(self) -> bool:
        """Return whether all reads have a response."""
        return all(result.ready() for result in self._results)

    def set_exception(self, error: BaseException) -> None:
        """Fail the reads without a response."""
        for result in self._results:
            if not result.ready():
                result.set_exception(error)


def node_stat(stat: Any) -> NodeStat | None:
    """Convert ZooKeeper's stat of a node."""
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
    """Return a node's ACL as in Kafka (``ZkData.defaultAcls``), which hides nodes with secrets."""
    if not secure:
        return list(OPEN_ACL_UNSAFE)
    if any(path.startswith(sensitive) for sensitive in _SENSITIVE_PATHS):
        return list(CREATOR_ALL_ACL)
    return [*CREATOR_ALL_ACL, *READ_ACL_UNSAFE]


_MESSAGES: Final[dict[Any, tuple[type[MillraceError], str]]] = {
    kazoo.NoNodeError: (NoNodeError, "{path} does not exist, or its parent does not"),
    kazoo.NodeExistsError: (NodeExistsError, "{path} already exists"),
    kazoo.BadVersionError: (BadVersionError, "{path} has a version other than {version}: read it again"),
    kazoo.NotEmptyError: (NotEmptyError, "{path} has children and cannot be deleted before them"),
    kazoo.NoChildrenForEphemeralsError: (
        NoChildrenForEphemeralsError,
        "the parent of {path} is ephemeral and cannot have children",
    ),
    kazoo.BadArgumentsError: (InvalidRequestError, "ZooKeeper refuses {path}, because it is not a valid node path"),
    kazoo.NoAuthError: (AccessDeniedError, "ZooKeeper denies access to {path}: check its ACL and zookeeper.sasl.*"),
    kazoo.AuthFailedError: (AccessDeniedError, "ZooKeeper refuses the credentials: check zookeeper.sasl.*"),
    kazoo.SessionClosedRequireSaslError: (
        AccessDeniedError,
        "ZooKeeper demands authentication for {path}: set zookeeper.sasl.mechanism, .username and .password",
    ),
    kazoo.SessionExpiredError: (SessionExpiredError, "the session had expired at {path}: open a new one"),
}


def error_of(error: BaseException, path: str, version: int) -> MillraceError:
    """Convert ZooKeeper's error for an operation on ``path`` that expected ``version``."""
    for kind, (ours, message) in _MESSAGES.items():
        if isinstance(error, kind):
            return ours(message.format(path=path, version=version))
    if isinstance(error, kazoo.SessionMovedError):
        return ConnectionLossError(
            f"another connection took over the session before the operation on {path}", maybe_applied=False
        )
    return CoordinationError(f"ZooKeeper refused an operation on {path}: {error!r}")
