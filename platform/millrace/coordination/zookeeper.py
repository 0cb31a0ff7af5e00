"""Coordination store of a cluster: a ZooKeeper ensemble, through kazoo.

``ZooKeeperStore`` is the configured ensemble, ``ZooKeeperCoordination`` a session with it. Every write is a
transaction, also of a single operation.
"""

from __future__ import annotations

import ssl
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from kazoo.protocol import serialization

from millrace.config.zookeeper import ZooKeeperConfig
from millrace.coordination.interface import (
    ANY_VERSION,
    Check,
    Create,
    Delete,
    NodeStat,
    NoNodeError,
    Operation,
    SessionState,
    Watch,
    Write,
    ensure_path,
)
from millrace.coordination.single_calls import SingleCalls
from millrace.coordination.tree import check_operation, check_path
from millrace.coordination.zookeeper_client import NOT_AT_FAULT, Together, acls, error_of, node_stat
from millrace.coordination.zookeeper_link import SessionLink
from millrace.coordination.zookeeper_tls import zookeeper_tls
from millrace.coordination.zookeeper_watches import LeftWatch
from millrace.security import Reloading

_EPHEMERAL, _SEQUENTIAL = 1, 2
_IN_FLIGHT_MAX = 256


class ZooKeeperStore:
    """A ZooKeeper ensemble. Raises ``InvalidConfigError`` if certificates cannot be used."""

    def __init__(self, config: ZooKeeperConfig) -> None:
        self._config = config
        self._tls = zookeeper_tls(config)
        self._sessions: list[ZooKeeperCoordination] = []

    def connect(self) -> ZooKeeperCoordination:
        """Open a session, and create the chroot if missing. The caller closes the session, also after it has expired.

        Raises ``EnvironmentProblemError`` if no server answers in time, ``AccessDeniedError`` if the credentials are
        refused.
        """
        session = ZooKeeperCoordination(self._config, self._tls)
        self._sessions = [*(each for each in self._sessions if not each._link.closed), session]
        try:
            session._open()
        except BaseException:
            session.close()
            raise
        return session

    def close(self) -> None:
        """End all sessions."""
        while self._sessions:
            self._sessions.pop().close()


class ZooKeeperCoordination(SingleCalls):
    """A session with a ``ZooKeeperStore``; ``Coordination`` documents each method."""

    def __init__(self, config: ZooKeeperConfig, tls: Reloading[ssl.SSLContext] | None) -> None:
        self._config = config
        self._chroot = config.address.chroot
        self._link = SessionLink(config, tls, self._look_again)

    def _open(self) -> None:
        self._link.open()
        if self._chroot:
            chroot, self._chroot = self._chroot, ""
            ensure_path(self, chroot)
            self._chroot = chroot
        else:
            self.exists("/")  # check access, because the server may accept the connection but not the credentials

    @property
    def session_id(self) -> int:
        """Session id."""
        return self._link.session_id

    @property
    def state(self) -> SessionState:
        """State of the session."""
        return self._link.state

    def get(self, path: str, watch: Watch | None = None) -> tuple[bytes, NodeStat]:
        """Read a node."""
        data, stat = self._read(path, watch, self._link.client.get_async)
        found = node_stat(stat)
        assert found is not None
        return data, found

    def get_many(self, paths: Sequence[str]) -> list[tuple[bytes, NodeStat] | None]:
        """Read nodes, up to ``_IN_FLIGHT_MAX`` requests at a time."""
        for path in paths:
            check_path(path)
        send = self._link.client.get_async
        found: list[tuple[bytes, NodeStat] | None] = []
        for start in range(0, len(paths), _IN_FLIGHT_MAX):
            chunk = paths[start : start + _IN_FLIGHT_MAX]
            together = partial(lambda chunk: Together([send(self._full(path)) for path in chunk]), chunk)
            for answer in self._link.ask(chunk[0], together, write=False):
                stat = node_stat(answer[1]) if answer is not None else None
                found.append((answer[0], stat) if stat is not None else None)
        return found

    def exists(self, path: str, watch: Watch | None = None) -> NodeStat | None:
        """Return the node's stat, or None."""
        return node_stat(self._read(path, watch, self._link.client.exists_async))

    def children(self, path: str, watch: Watch | None = None) -> list[str]:
        """Return the sorted names of the children."""
        names, _ = self._read(path, watch, self._send_children, of_children=True)
        return sorted(names)

    def multi(self, operations: Sequence[Operation]) -> list[str | NodeStat | None]:
        """Apply all operations or none."""
        if not operations:
            return []
        requests = [self._request(operation) for operation in operations]
        transaction = self._link.client.transaction
        first = operations[0].path

        def send() -> Any:
            request = transaction()
            request.operations.extend(requests)
            return request.commit_async()

        results = self._link.ask(first, send, write=True)
        for operation, result in zip(operations, results, strict=True):
            if isinstance(result, Exception) and not isinstance(result, NOT_AT_FAULT):
                raise error_of(result, operation.path, getattr(operation, "version", ANY_VERSION))
        return [self._result(operation, result) for operation, result in zip(operations, results, strict=True)]

    def sync(self) -> None:
        """Let the connected server catch up with the leader."""
        self._link.ask("/", lambda: self._link.client.sync_async(self._full("/")), write=False)

    def on_state(self, listener: Callable[[SessionState], None]) -> None:
        """Register ``listener`` for later states."""
        self._link.on_state(listener)

    def on_session_end(self, listener: Callable[[], None]) -> None:
        """Register ``listener``, which is called once when the session expires."""
        self._link.on_session_end(listener)

    def close(self) -> None:
        """End the session. Without a server this takes up to the session timeout, and so does the end of the
        session.
        """
        self._link.close()

    # --- reading ---------------------------------------------------------------------------------------------

    def _send_children(self, path: str, watch: LeftWatch | None) -> Any:
        return self._link.client.get_children_async(path, watch, include_data=True)

    def _read(
        self, path: str, watch: Watch | None, send: Callable[[str, LeftWatch | None], Any], *, of_children: bool = False
    ) -> Any:
        check_path(path)
        if watch is None:
            return self._link.ask(path, lambda: send(self._full(path), None), write=False)
        return self._read_and_leave(LeftWatch(path, watch, of_children=of_children), send)

    def _read_and_leave(self, left: LeftWatch, send: Callable[[str, LeftWatch | None], Any]) -> Any:
        def remember(result: Any) -> None:
            left.answer = result

        try:
            return self._link.ask(left.path, lambda: send(self._full(left.path), left), write=False, sent=remember)
        except BaseException:
            left.spent = True  # a late response must not leave a watch
            raise

    def _look_again(self, left: LeftWatch) -> tuple[LeftWatch, NodeStat | None]:
        again = LeftWatch(left.path, left.watch, of_children=left.of_children)
        try:
            if left.of_children:
                return again, node_stat(self._read_and_leave(again, self._send_children)[1])
            return again, node_stat(self._read_and_leave(again, self._link.client.exists_async))
        except NoNodeError:
            return again, None

    # --- writing ---------------------------------------------------------------------------------------------

    def _request(self, operation: Operation) -> Any:
        check_operation(operation)
        path = self._full(operation.path)
        match operation:
            case Create():
                flags = (_EPHEMERAL if operation.ephemeral else 0) | (_SEQUENTIAL if operation.sequential else 0)
                allowed = acls(operation.path, secure=self._config.zookeeper_set_acl)
                return serialization.Create(path, operation.data, allowed, flags)
            case Write():
                return serialization.SetData(path, operation.data, operation.version)
            case Delete():
                return serialization.Delete(path, operation.version)
            case Check():
                return serialization.CheckVersion(path, operation.version)

    def _result(self, operation: Operation, result: Any) -> str | NodeStat | None:
        match operation:
            case Create():
                return str(result)[len(self._chroot) :]
            case Write():
                return node_stat(result)
            case _:
                return None

    def _full(self, path: str) -> str:
        return (self._chroot + path if path != "/" else self._chroot) or "/"
