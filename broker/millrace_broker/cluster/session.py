"""One view of coordination that outlives its sessions: calls go to the session that is open now.

It is for what does not depend on a session: reads, and writes that are conditional on what was read. Whoever has
ephemeral nodes or watches, or may write only as long as he is who he was, holds the session itself.

A read under a session that is over is made again under the next one, which is waited for as long as for a lost
connection. A write is not: the session may have ended while it was under way.
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
    """A ``Coordination`` whose session is replaced by ``renew``; see there for what each method promises."""

    def __init__(self, session: Coordination, patience_s: float) -> None:
        self._session = session
        self._patience_s: Final = patience_s
        self._renewed: Final = threading.Condition()
        self._is_closing = False

    @property
    def session(self) -> Coordination:
        """The session that is open now."""
        return self._session

    def renew(self, session: Coordination) -> None:
        """Use another session from now on."""
        with self._renewed:
            self._session = session
            self._renewed.notify_all()

    def release(self) -> None:
        """Let nobody wait for another session any more: the broker stops."""
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
        """How the session stands."""
        return self._session.state

    @property
    def session_id(self) -> int:
        """Number of the session."""
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
        """The node's bookkeeping, or None."""
        return self._read(lambda session: session.exists(path, watch))

    def children(self, path: str, watch: Watch | None = None) -> list[str]:
        """Sorted names of the children."""
        return self._read(lambda session: session.children(path, watch))

    def multi(self, operations: Sequence[Operation]) -> list[str | NodeStat | None]:
        """Apply all operations or none."""
        return self._session.multi(operations)

    def sync(self) -> None:
        """Have reads that follow see what was written before."""
        self._session.sync()

    def on_state(self, listener: Callable[[SessionState], None]) -> None:
        """Have ``listener`` called with each state of this session."""
        self._session.on_state(listener)

    def on_session_end(self, listener: Callable[[], None]) -> None:
        """Have ``listener`` called once when this session expires."""
        self._session.on_session_end(listener)

    def close(self) -> None:
        """End the session."""
        self._session.close()
