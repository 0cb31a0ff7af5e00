"""Life of one ZooKeeper session: connection, states and calls.

Invariants

* A link has one session and never gets another. After the session has ended the client makes no connection, so no
  request of this link is executed under a later session.
* ``_state`` is changed by the connection's thread, or by ``close``, and never leaves EXPIRED or CLOSED.
* One thread calls watches and listeners, in the order in which the connection delivered events and state changes.
* Every call ends: with a response, at the end of the session, or at its timeout.
"""

from __future__ import annotations

import logging
import ssl
import threading
import time
from collections.abc import Callable
from functools import partial
from importlib.util import find_spec
from queue import SimpleQueue
from typing import Any, Final

from kazoo.client import KazooClient
from kazoo.exceptions import SessionExpiredError as KazooSessionExpired
from kazoo.exceptions import WriterNotClosedException
from kazoo.protocol.states import KazooState, KeeperState

from millrace.config.zookeeper import ZooKeeperConfig
from millrace.coordination.interface import (
    ANY_VERSION,
    AccessDeniedError,
    ConnectionLossError,
    NodeStat,
    SessionExpiredError,
    SessionState,
)
from millrace.coordination.zookeeper_client import CONNECTION_LOST, SessionHandler, error_of
from millrace.coordination.zookeeper_watches import LeftWatch, SessionWatches, tell
from millrace.errors import EnvironmentProblemError
from millrace.security import Reloading

_logger = logging.getLogger(__name__)

_RECONNECT: Final = {"max_tries": -1, "delay": 0.05, "max_delay": 1.0}
"""Delay in seconds between connection attempts, without a limit of attempts, because ZooKeeper decides the expiry."""

_OVER: Final = (SessionState.EXPIRED, SessionState.CLOSED)

LookAgain = Callable[[LeftWatch], tuple[LeftWatch, NodeStat | None]]


class SessionLink:
    """One session. ``look_again`` is for ``SessionWatches``."""

    def __init__(self, config: ZooKeeperConfig, tls: Reloading[ssl.SSLContext] | None, look_again: LookAgain) -> None:
        self._config: Final = config
        self._watches: Final = SessionWatches(look_again)
        self._handler: Final = SessionHandler(tls, self._take_event)
        self.client: Final = KazooClient(
            hosts=config.address.hosts,
            timeout=config.zookeeper_session_timeout_ms / 1000,
            handler=self._handler,
            sasl_options=config.sasl_options(),
            connection_retry=dict(_RECONNECT),
        )
        self.session_id = 0
        self._changed: Final = threading.Condition()
        self._state: SessionState | None = None  # None: never connected
        self._access_denied = False
        self._outstanding: set[Any] = set()
        self._state_listeners: list[Callable[[SessionState], None]] = []
        self._end_listeners: list[Callable[[], None]] = []
        self._calls: Final[SimpleQueue[Callable[[], None] | None]] = SimpleQueue()
        self._teller: Final = threading.Thread(target=self._tell_all, name="millrace-zookeeper", daemon=True)
        self._stopping: Final = threading.Lock()
        self._stopped = False
        self.closed = False
        """True if ``close`` is complete."""
        self._sending: Final = threading.Lock()  # never taken by the connection's thread, for which a sender may wait

    # --- life ------------------------------------------------------------------------------------------------

    def open(self) -> None:
        """Connect. Raises ``EnvironmentProblemError`` after the timeout, or if SASL is not installed."""
        if self._config.zookeeper_sasl_mechanism and find_spec("puresasl") is None:
            raise EnvironmentProblemError("zookeeper.sasl.mechanism needs pure-sasl: pip install 'millrace[cluster]'")
        self._teller.start()
        self.client.add_listener(self._take_state)
        self.client.start_async()
        with self._changed:
            self._changed.wait_for(lambda: self._state is not None, self._config.connection_timeout_ms / 1000)
            if self._state is None:
                raise EnvironmentProblemError(
                    f"no ZooKeeper answers at {self._config.address.hosts} within {self._config.connection_timeout_ms}"
                    " ms: start it, or correct zookeeper.connect or zookeeper.ssl.*"
                )

    @property
    def state(self) -> SessionState:
        """State of the session."""
        return self._state or SessionState.SUSPENDED

    def close(self) -> None:
        """End the session and wait for its threads. Takes up to the session timeout without a server."""
        with self._changed:
            if self._state not in _OVER:
                self._set_state(SessionState.CLOSED)
        self._stop_client()
        self._calls.put(None)
        if threading.current_thread() is not self._teller and self._teller.ident is not None:
            self._teller.join()
        self.closed = True

    def _stop_client(self) -> None:
        with self._stopping:
            if self._stopped:
                return
            self._stopped = True
            try:
                self.client.stop()
                self.client.close()
            except WriterNotClosedException:
                _logger.warning("a connection to ZooKeeper did not end in time; the session ends by its timeout")
            with self._sending:
                outstanding, self._outstanding = self._outstanding, set()
        for result in outstanding:  # requests that arrived after kazoo cleared its queues
            if not result.ready():
                result.set_exception(KazooSessionExpired())

    # --- calls -----------------------------------------------------------------------------------------------

    def ask(
        self,
        path: str,
        send: Callable[[], Any],
        *,
        write: bool,
        version: int = ANY_VERSION,
        sent: Callable[[Any], None] = lambda _: None,
    ) -> Any:
        """Send a request once connected, and wait for its response; a read is retried after a connection loss.

        ``sent`` receives kazoo's result object. Raises ``ConnectionLossError``, ``SessionExpiredError``, and
        ZooKeeper's errors.
        """
        deadline = time.monotonic() + self._config.connection_timeout_ms / 1000
        # kazoo drops a silent server after two thirds of the session timeout; then the call may wait for another
        # server.
        answer_s_max = (self._config.zookeeper_session_timeout_ms + self._config.connection_timeout_ms) / 1000
        while True:
            self._await_connection(path, deadline)
            with self._sending:
                result = send()
                sent(result)
                self._outstanding.add(result)
            try:
                return result.get(timeout=answer_s_max)
            except CONNECTION_LOST as error:
                if self._state in _OVER:
                    raise self._over(path) from error
                if write:
                    raise ConnectionLossError(
                        f"the connection to ZooKeeper was lost at {path}, and the write may have succeeded: read the "
                        "node",
                        maybe_applied=True,
                    ) from error
            except KazooSessionExpired as error:
                self._end(SessionState.EXPIRED)
                raise self._over(path) from error
            except Exception as error:
                raise error_of(error, path, version) from error
            finally:
                with self._sending:
                    self._outstanding.discard(result)

    def _await_connection(self, path: str, deadline: float) -> None:
        wanted = (SessionState.CONNECTED, *_OVER)
        with self._changed:
            if not self._changed.wait_for(lambda: self._state in wanted, deadline - time.monotonic()):
                raise ConnectionLossError(
                    f"ZooKeeper was not reachable for {self._config.connection_timeout_ms} ms, so {path} was not "
                    "requested",
                    maybe_applied=False,
                )
        if self._state in _OVER:
            raise self._over(path)

    def _over(self, path: str) -> SessionExpiredError | AccessDeniedError:
        if self._access_denied:
            return AccessDeniedError("ZooKeeper refuses the credentials: check zookeeper.sasl.*")
        return SessionExpiredError(f"session {self.session_id:#x} had expired at {path}: open a new one")

    # --- states and events -----------------------------------------------------------------------------------

    def on_state(self, listener: Callable[[SessionState], None]) -> None:
        """See ``Coordination``."""
        with self._changed:
            self._state_listeners.append(listener)

    def on_session_end(self, listener: Callable[[], None]) -> None:
        """See ``Coordination``."""
        with self._changed:
            if self._state is SessionState.EXPIRED:
                self._calls.put(partial(tell, lambda _: listener(), None))
            else:
                self._end_listeners.append(listener)

    def _take_state(self, state: str) -> None:
        """Process kazoo's state, in the connection's thread, before it reconnects or fails waiting requests."""
        with self._changed:
            if self._state in _OVER:
                return
            if state == KazooState.CONNECTED:
                self.session_id = self.client.client_id[0]
                self._set_state(SessionState.CONNECTED)
            elif state == KazooState.SUSPENDED:
                self._set_state(SessionState.SUSPENDED)
            else:
                self._access_denied = self._is_refused()
                self._set_state(SessionState.EXPIRED)

    def _is_refused(self) -> bool:
        """Return whether the credentials are the reason of the session's end.

        A server with ``enforce.auth.enabled`` refuses them by an error that kazoo does not know in SASL. The
        connection's thread then ends amid SASL. An expiry is another state.
        """
        sasl = getattr(self.client, "sasl_cli", None)
        has_ended_amid = self.client.client_state == KeeperState.CLOSED and sasl is not None and not sasl.complete
        return has_ended_amid or self.client.client_state == KeeperState.AUTH_FAILED

    def _end(self, state: SessionState) -> None:
        with self._changed:
            if self._state not in _OVER:
                self._set_state(state)

    def _set_state(self, state: SessionState) -> None:
        if state is SessionState.EXPIRED:
            self._handler.refuse_connections()
        self._state = state
        self._calls.put(partial(self._tell_state, state))
        self._changed.notify_all()

    def _take_event(self, left: LeftWatch, event: Any) -> None:
        self._calls.put(partial(self._tell_event, left, event))

    def _tell_all(self) -> None:
        while (call := self._calls.get()) is not None:
            call()

    def _tell_event(self, left: LeftWatch, event: Any) -> None:
        if self._state not in _OVER:
            self._watches.take(left, event)

    def _tell_state(self, state: SessionState) -> None:
        with self._changed:
            listeners = list(self._state_listeners)
            ends = list(self._end_listeners) if state is SessionState.EXPIRED else []
        for listener in listeners:
            tell(listener, state)
        for end in ends:
            tell(lambda _, end=end: end(), None)  # type: ignore[misc]
        if state is SessionState.CONNECTED:
            self._restore()
        elif state in _OVER:
            self._watches.forget()
            self._stop_client()

    def _restore(self) -> None:
        with self._sending:
            pass  # after this lock, each sender of an already called watch has stored kazoo's result
        try:
            self._watches.restore()
        except (SessionExpiredError, AccessDeniedError):
            return  # no watches are left
        except ConnectionLossError:
            with self._changed:
                if self._state is SessionState.CONNECTED:  # otherwise the reconnect tries again
                    self._calls.put(self._restore)
