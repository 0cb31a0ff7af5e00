"""ZooKeeper in a simulation.

The embedded store takes its place, behind unreliable links. A session lives as long as the server hears its process.
When a session expires at the server, its owner learns that only after it reaches the server again. Until then the owner
continues with outdated state, against which fencing protects. While the link is cut, calls fail with
``ConnectionLossError``. A call whose answer is lost has been carried out all the same.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Final, TypeVar

from millrace.coordination import (
    ConnectionLossError,
    EmbeddedCoordination,
    EmbeddedStore,
    NodeStat,
    NoNodeError,
    Operation,
    SessionExpiredError,
    SessionState,
    Watch,
    WatchEvent,
    paths,
)
from millrace.coordination.single_calls import SingleCalls
from millrace.errors import EnvironmentProblemError

from .loop import Process, VirtualLoop
from .network import Network

T = TypeVar("T")
ZOOKEEPER: Final = "zookeeper"
"""The ensemble's name on the network."""
_BEAT_S: Final = 0.4


class Ensemble:
    """The server's side of all sessions."""

    def __init__(self, loop: VirtualLoop, network: Network, choose: random.Random, session_timeout_s: float) -> None:
        self.loop: Final = loop
        self.network: Final = network
        self.choose: Final = choose
        self.timeout_s: Final = session_timeout_s
        self.store: Final = EmbeddedStore(now_ms=lambda: round(loop.time() * 1000))
        self.outside: Final = self.store.connect()
        """The session of administrators' tools."""
        self.lost_answers = 0.0
        """The probability that the answer to a write is lost."""
        self.changes = 0
        """A counter that grows with every change that may concern a node."""
        self._sessions: Final[list[SimulatedSession]] = []
        self.opened: Final[dict[int, SimulatedSession]] = {}
        """All sessions of the run, by their ids."""
        self.beats: Final = Process("zookeeper")
        self.loop.call_later(_BEAT_S, self._beat, context=self.beats.context)

    def open(self, session: SimulatedSession) -> None:
        """Start to monitor the heartbeats of a session."""
        self._sessions.append(session)
        self.opened[session.session_id] = session

    def reaches(self, host: str) -> bool:
        """Tell whether a host has contact with the ensemble."""
        return self.network.is_open(host, ZOOKEEPER) and self.network.is_open(ZOOKEEPER, host)

    def expire(self, host: str) -> None:
        """Expire a host's session, as if its heartbeats had stopped."""
        for session in self._sessions:
            if session.host == host:
                self.end(session)

    def depose_controller(self) -> None:
        """Delete the controller node, as administrators do to force an election."""
        self.changes += 1
        with suppress(NoNodeError):
            self.outside.delete(paths.CONTROLLER)

    def end(self, session: SimulatedSession) -> None:
        """Expire a session whose heartbeats have stopped for too long."""
        self.changes += 1
        self.store.expire(session.session_id)

    def _beat(self) -> None:
        now_s = self.loop.time()
        for session in self._sessions:
            if session.is_in_touch:
                session.heard_s = now_s
                session.tell()
            elif now_s - session.heard_s > self.timeout_s:
                self.end(session)
        self._sessions[:] = [each for each in self._sessions if not each.is_over]
        self.loop.call_later(_BEAT_S, self._beat, context=self.beats.context)


class SimulatedStore:
    """One process' connection to the ensemble."""

    def __init__(self, ensemble: Ensemble, host: str, process: Process) -> None:
        self._ensemble: Final = ensemble
        self._host: Final = host
        self._process: Final = process
        self._sessions: Final[list[SimulatedSession]] = []

    def connect(self) -> SimulatedSession:
        """Open a session. Raises ``EnvironmentProblemError``."""
        if not self._ensemble.reaches(self._host):
            raise EnvironmentProblemError(f"no ZooKeeper answers {self._host}")
        session = SimulatedSession(self._ensemble, self._host, self._process)
        self._sessions.append(session)
        self._ensemble.open(session)
        return session

    def close(self) -> None:
        """End all sessions."""
        for session in self._sessions:
            session.close()


class SimulatedSession(SingleCalls):
    """A session. ``Coordination`` documents each method."""

    def __init__(self, ensemble: Ensemble, host: str, process: Process) -> None:
        self.host: Final = host
        self.heard_s = ensemble.loop.time()
        self._ensemble: Final = ensemble
        self._process: Final = process
        self._inner: Final[EmbeddedCoordination] = ensemble.store.connect()
        self._news: Final[list[Callable[[], None]]] = []
        """Events that the server will send, in order, as soon as the link works."""
        self._state_listeners: Final[list[Callable[[SessionState], None]]] = []
        self._end_listeners: Final[list[Callable[[], None]]] = []
        self._state = SessionState.CONNECTED

    # --- the server's side -----------------------------------------------------------------------------------

    @property
    def is_in_touch(self) -> bool:
        """Tell whether the server hears the session's process now."""
        is_silent = self._process.is_dead or self._process.is_paused or self._state is not SessionState.CONNECTED
        return not is_silent and self._ensemble.reaches(self.host)

    @property
    def has_ended(self) -> bool:
        """Tell whether the session has ended at the server."""
        return self._inner.state is not SessionState.CONNECTED

    @property
    def process(self) -> Process:
        """Return the session's process."""
        return self._process

    @property
    def is_over(self) -> bool:
        """Tell whether the session has ended and its owner knows that or is dead."""
        is_ended = self._inner.state is not SessionState.CONNECTED
        return is_ended and (self._process.is_dead or self._state is not SessionState.CONNECTED)

    def tell(self) -> None:
        """Send all pending events, because the link works."""
        if self._inner.state is SessionState.EXPIRED and self._state is SessionState.CONNECTED:
            self._state = SessionState.EXPIRED
            self._news[:] = [lambda each=each: each(self._state) for each in self._state_listeners]  # type: ignore[misc]
            self._news += self._end_listeners
        while self._news:
            self._ensemble.loop.call_soon(self._news.pop(0), context=self._process.context)

    def _watched(self, watch: Watch | None) -> Watch | None:
        """Wrap a watch so that it fires over the link. The store needs equal wrappers for equal watches."""
        return None if watch is None else _Told(self, watch)

    def take(self, watch: Watch, event: WatchEvent) -> None:
        """Queue the event of a watch that has fired."""
        self._news.append(lambda: watch(event))
        delay_s = self._ensemble.choose.uniform(0.0002, 0.003)
        self._ensemble.loop.call_later(delay_s, self._tell_news, context=self._ensemble.beats.context)

    def _tell_news(self) -> None:
        if self.is_in_touch:
            self.tell()

    # --- calls -----------------------------------------------------------------------------------------------

    def _call(self, call: Callable[[], T], *, is_write: bool = False) -> T:
        if self._process.is_dead:
            raise SessionExpiredError(f"{self.host} is dead")
        if not self._ensemble.reaches(self.host):
            raise ConnectionLossError(f"{self.host} has lost its connection to ZooKeeper", maybe_applied=False)
        is_lost = is_write and self._ensemble.choose.random() < self._ensemble.lost_answers
        if is_lost and self._ensemble.choose.random() < 0.5:
            raise ConnectionLossError("the request is lost", maybe_applied=True)
        try:
            result = call()
        except SessionExpiredError:
            self.tell()
            raise
        if is_lost:
            raise ConnectionLossError("the answer is lost", maybe_applied=True)
        return result

    @property
    def state(self) -> SessionState:
        return self._state

    @property
    def session_id(self) -> int:
        return self._inner.session_id

    def get(self, path: str, watch: Watch | None = None) -> tuple[bytes, NodeStat]:
        return self._call(lambda: self._inner.get(path, self._watched(watch)))

    def exists(self, path: str, watch: Watch | None = None) -> NodeStat | None:
        return self._call(lambda: self._inner.exists(path, self._watched(watch)))

    def children(self, path: str, watch: Watch | None = None) -> list[str]:
        return self._call(lambda: self._inner.children(path, self._watched(watch)))

    def multi(self, operations: Sequence[Operation]) -> list[str | NodeStat | None]:
        self._ensemble.changes += 1
        return self._call(lambda: self._inner.multi(operations), is_write=True)

    def sync(self) -> None:
        self._call(self._inner.sync)

    def on_state(self, listener: Callable[[SessionState], None]) -> None:
        self._state_listeners.append(listener)

    def on_session_end(self, listener: Callable[[], None]) -> None:
        self._end_listeners.append(listener)
        if self._state is SessionState.EXPIRED:
            self._ensemble.loop.call_soon(listener, context=self._process.context)

    def close(self) -> None:
        """Close the session. If the server is not reached, the session expires."""
        if self._state is SessionState.CONNECTED:
            self._state = SessionState.CLOSED
        if not self._process.is_dead and self._ensemble.reaches(self.host):
            self._ensemble.changes += 1
            self._inner.close()


class _Told:
    """A wrapped watch. Two are equal if session and function are the same."""

    def __init__(self, session: SimulatedSession, watch: Watch) -> None:
        self._key: Final = (id(session), watch)
        self._session: Final = session
        self._watch: Final = watch

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Told) and self._key == other._key

    def __hash__(self) -> int:
        return hash(self._key)

    def __call__(self, event: WatchEvent) -> None:
        self._session.take(self._watch, event)
