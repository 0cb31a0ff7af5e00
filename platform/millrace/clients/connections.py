"""Connections to brokers, with timeouts and retries of calls.

``transport`` carries the calls. Invariant: a call that changes state is retried only if the broker certainly did not
receive it.
"""

from __future__ import annotations

import os
import threading
import time
import weakref
from collections.abc import Callable, Iterable
from typing import Final, TypeVar

from millrace.clients.backoff import backoff_s
from millrace.clients.transport import Helper, Links, Method, PendingCall, UnaryCall, unary
from millrace.clients.transport.calls import OnDone
from millrace.config.client import ClientConfig
from millrace.errors import (
    BrokerUnavailableError,
    ClientClosedError,
    MillraceError,
    NotCoordinatorError,
    NotLeaderError,
    RequestTimedOutError,
    UnknownOutcomeError,
    UsageError,
)

Request = TypeVar("Request")
Response = TypeVar("Response")


def ms_until(deadline: float) -> int:
    """Return the milliseconds until a time of ``time.monotonic``, at least 1, as calls take them."""
    return max(int((deadline - time.monotonic()) * 1000), 1)


def forked_client_error() -> UsageError:
    """Return the error of a client that is used in a process forked from its own."""
    return UsageError(
        "the client cannot be used in this process, which was forked from the one that made it: make a client in each "
        "process"
    )


class Notice:
    """Wait of one thread for the ends of several calls.

    ``give`` is the ``on_done`` of the calls.
    """

    def __init__(self) -> None:
        self._condition = threading.Condition()

    def give(self, response: object, error: MillraceError | None) -> None:
        """Wake the waiting thread."""
        with self._condition:
            self._condition.notify_all()

    def wait(self, is_over: Callable[[], bool], timeout_s: float | None) -> None:
        """Wait until the ends of calls have made ``is_over`` true, or for ``timeout_s``."""
        with self._condition:
            self._condition.wait_for(is_over, timeout_s)


class Connections:
    """Connections of one client to the brokers. Thread safe.

    A client with state that one process must own, such as sequence numbers or a membership, gives ``on_fork``. In a
    forked process these connections are then closed, and ``on_fork`` is called. Other clients connect again there.
    """

    def __init__(self, config: ClientConfig, *, on_fork: Callable[[], None] | None = None) -> None:
        self._config = config
        self._on_fork = on_fork
        self.is_forked = False
        """True if the client belongs to the process that this one was forked from, and cannot be used here."""
        self._closed = threading.Event()
        self._links = Links(config)
        self._preferred = ""
        self._known: tuple[str, ...] = ()
        if on_fork is not None:
            _kept_in_process.add(self)

    @property
    def config(self) -> ClientConfig:
        """The client's configuration."""
        return self._config

    @property
    def is_closed(self) -> bool:
        """True if ``close`` was called."""
        return self._closed.is_set()

    def check_open(self) -> None:
        """Raise ``ClientClosedError`` after ``close``, and the error of ``check_process``."""
        self.check_process()
        if self._closed.is_set():
            raise ClientClosedError("the client is closed: make a new one")

    def check_process(self) -> None:
        """Raise ``UsageError`` in a forked process, if the client belongs to the other one."""
        if self.is_forked:
            raise forked_client_error()

    def call(
        self,
        method: Method[Request, Response],
        request: Request,
        *,
        address: str | None = None,
        changes: str | None = None,
        timeout_ms: int | None = None,
    ) -> Response:
        """Make a call to ``address`` or any bootstrap broker, with retries, and return its response.

        ``changes`` describes the change of the call ("create topic t"). If the connection breaks after such a call
        was sent, ``UnknownOutcomeError`` is raised instead of a retry. ``timeout_ms`` limits all retries together
        (``default.api.timeout.ms``).

        Raises the broker's error, or ``BrokerUnavailableError`` if none answered for
        ``socket.connection.setup.timeout.ms`` and each was tried.
        """
        started = time.monotonic()
        deadline = started + (timeout_ms or self._config.default_api_timeout_ms) / 1000
        give_up = min(deadline, started + self._config.socket_connection_setup_timeout_ms / 1000)
        tried: list[str] = []
        while True:
            # Any broker means the one of the fewest attempts: each is tried once before any is repeated.
            target = address or min(self._addresses(), key=tried.count)
            try:
                return self._once(method, request, target, deadline)
            except MillraceError as error:
                wait_s = backoff_s(self._config, len(tried))
                tried.append(target)
                if isinstance(error, (BrokerUnavailableError, RequestTimedOutError)):
                    self._avoid(target)
                is_all = address is not None or set(tried).issuperset(self._addresses())
                until = give_up if is_all and isinstance(error, BrokerUnavailableError) else deadline
                is_elsewhere = address is not None and isinstance(error, (NotCoordinatorError, NotLeaderError))
                if not error.retriable or is_elsewhere or time.monotonic() + wait_s > until or self.is_closed:
                    raise
                if changes and not _was_not_sent(error):
                    raise UnknownOutcomeError(
                        f"the connection to {target} broke on the request to {changes}: the broker may have "
                        f"made the change: check its state before you repeat the call ({error.message})"
                    ) from error
            self.wait(wait_s)

    def once(
        self,
        method: Method[Request, Response],
        request: Request,
        *,
        address: str,
        timeout_ms: int,
    ) -> Response:
        """Make a call without retries; raises the broker's error, ``BrokerUnavailableError``."""
        return self._once(method, request, address, time.monotonic() + timeout_ms / 1000)

    def _once(self, method: Method[Request, Response], request: Request, target: str, deadline: float) -> Response:
        timeout_s = min(self._config.request_timeout_ms / 1000, max(deadline - time.monotonic(), 0.001))
        self.check_open()
        response = self._send(unary(method), request, target, timeout_s)
        if target in self._config.addresses:
            self._preferred = target
        return response

    def _send(self, call: UnaryCall[Request, Response], request: Request, target: str, timeout_s: float) -> Response:
        """Make the call and wait for it; subclasses with an interruptible wait override this."""
        return self._links.to(target).call(call, request, timeout_s)

    def begin(
        self,
        call: UnaryCall[Request, Response],
        request: Request,
        *,
        address: str,
        timeout_s: float,
        on_done: OnDone[Response] | None = None,
        cancellable: bool = False,
    ) -> PendingCall[Response]:
        """Start a call, once, without waiting; ``on_done`` receives its response or error, in another thread.

        Only a ``cancellable`` call may be cancelled. If the connections are closed meanwhile, it ends with
        ``ClientClosedError``; if they are closed already, that error is raised.
        """
        pending: PendingCall[Response] = PendingCall(on_done)
        self._links.to(address).begin(call, request, timeout_s, pending, cancellable=cancellable)
        return pending

    def notice(self) -> Notice:
        """Return a notice with which the current thread waits for calls that it begins."""
        return Notice()

    @property
    def helper(self) -> Helper:
        """Receiver of responses for a thread that waits."""
        return self._links

    def know(self, addresses: Iterable[str]) -> None:
        """Note the cluster's brokers as further bootstrap brokers."""
        self._known = tuple(addresses)

    def _addresses(self) -> list[str]:
        """Return the brokers for a call to any of them, from the one that answered last."""
        addresses = list(dict.fromkeys((*self._config.addresses, *self._known)))
        first = addresses.index(self._preferred) if self._preferred in addresses else 0
        return addresses[first:] + addresses[:first]

    def ask_another(self) -> None:
        """Begin the next call to any broker with another one, because the metadata of the last one is out of date."""
        addresses = self._addresses()
        self._preferred = addresses[1 % len(addresses)]

    def _avoid(self, address: str) -> None:
        """Begin the next call to any broker with another one than this, because it did not answer in time."""
        if self._addresses()[0] == address:
            self.ask_another()

    def wait(self, seconds: float) -> None:
        """Wait before a retry; raises ``ClientClosedError`` if the client is closed meanwhile."""
        if self._closed.wait(seconds):
            self.check_open()

    def close(self) -> None:
        """Close all connections; calls in flight fail. May be called twice."""
        self._closed.set()
        self._links.close()

    def abandon(self) -> None:
        """Leave the client to the process that this one was forked from. Threads there may hold its locks."""
        self.is_forked = True
        self._closed = threading.Event()
        self._closed.set()
        self._links.close()
        if self._on_fork is not None:
            self._on_fork()


_kept_in_process: Final[weakref.WeakSet[Connections]] = weakref.WeakSet()


def _after_fork() -> None:
    for connections in list(_kept_in_process):
        connections.abandon()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)  # after that of the transport, which replaces the locks of links


def _was_not_sent(error: MillraceError) -> bool:
    """Return whether the request had no effect: the broker refused it, or no connection was made."""
    if isinstance(error, BrokerUnavailableError):
        return not error.was_sent
    return error.retriable and not isinstance(error, RequestTimedOutError)
