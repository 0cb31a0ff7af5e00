"""A coordination client that outlives its sessions.

Calls go to the present session.

It serves operations that do not depend on a session: reads, and writes that are conditional on a read. A component with
ephemeral nodes or watches, or with a right to write that ends with the session, holds the session itself.

A read under an ended session is repeated under the next one. It waits for that session as long as for a lost
connection. A write is not repeated, because the session may have ended while the write was in flight.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Final, TypeVar

from millrace.coordination import (
    ANY_VERSION,
    Coordination,
    NodeStat,
    Operation,
    SessionExpiredError,
    SessionState,
    Watch,
)

T = TypeVar("T")


class RenewedCoordination:
    """A ``Coordination`` whose session ``renew`` replaces; see that protocol for the methods."""

    def __init__(self, session: Coordination, patience_s: float) -> None:
        self._session = session
        self._patience_s: Final = patience_s
        self._renewed: Final = threading.Condition()
        self._is_closing = False

    @property
    def session(self) -> Coordination:
        """The present session."""
        return self._session

    def renew(self, session: Coordination) -> None:
        """Use another session from now on."""
        with self._renewed:
            self._session = session
            self._renewed.notify_all()

    def release(self) -> None:
        """End all waits for another session, because the broker stops."""
        with self._renewed:
            self._is_closing = True
            self._renewed.notify_all()

    def _read(self, call: Callable[[Coordination], T]) -> T:
        while True:
            session = self._session
            try:
                return call(session)
            except SessionExpiredError:
                if not self._await_other_than(session):
                    raise

    def _await_other_than(self, session: Coordination) -> bool:
        with self._renewed:
            self._renewed.wait_for(lambda: self._session is not session or self._is_closing, self._patience_s)
            return self._session is not session

    @property
    def state(self) -> SessionState:
        """The state of the session."""
        return self._session.state

    @property
    def session_id(self) -> int:
        """The number of the session."""
        return self._session.session_id

    def create(self, path: str, data: bytes = b"", *, ephemeral: bool = False, sequential: bool = False) -> str:
        """Create a node; returns its path."""
        return self._session.create(path, data, ephemeral=ephemeral, sequential=sequential)

    def get(self, path: str, watch: Watch | None = None) -> tuple[bytes, NodeStat]:
        """Read a node."""
        return self._read(lambda session: session.get(path, watch))

    def get_many(self, paths: Sequence[str]) -> list[tuple[bytes, NodeStat] | None]:
        """Read nodes; None for those that do not exist."""
        return self._read(lambda session: session.get_many(paths))

    def set(self, path: str, data: bytes, version: int = ANY_VERSION) -> NodeStat:
        """Write a node."""
        return self._session.set(path, data, version)

    def delete(self, path: str, version: int = ANY_VERSION) -> None:
        """Delete a node."""
        self._session.delete(path, version)

    def exists(self, path: str, watch: Watch | None = None) -> NodeStat | None:
        """Return the node's status, or None."""
        return self._read(lambda session: session.exists(path, watch))

    def children(self, path: str, watch: Watch | None = None) -> list[str]:
        """Return the sorted names of the children."""
        return self._read(lambda session: session.children(path, watch))

    def multi(self, operations: Sequence[Operation]) -> list[str | NodeStat | None]:
        """Apply all operations or none."""
        return self._session.multi(operations)

    def sync(self) -> None:
        """Make later reads see all earlier writes."""
        self._session.sync()

    def on_state(self, listener: Callable[[SessionState], None]) -> None:
        """Call ``listener`` with each state of the present session."""
        self._session.on_state(listener)

    def on_session_end(self, listener: Callable[[], None]) -> None:
        """Call ``listener`` once when the present session expires."""
        self._session.on_session_end(listener)

    def close(self) -> None:
        """End the session."""
        self._session.close()
