"""Threads that receive responses of background calls.

A call is sent in the caller's thread, so only the receiving thread must be woken for its response. Invariants:

- While a call is in flight, some thread waits for its response. A thread that is about to run a callback, which may
  take long, ensures that another thread waits.
- A connection in flight is armed for one event at a time. The thread that gets the event is the only user of the
  connection until it arms it again.
- All waiting threads watch the calls' deadlines: none sleeps beyond the first deadline.
- A thread that only waits for a response calls ``help``: it receives itself, and no other thread is woken.
"""

from __future__ import annotations

import logging
import os
import select
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Final, Protocol

from millrace.clients.transport.frame_socket import FrameSocket
from millrace.interrupts import Uninterrupted
from millrace.spinning import Spinning

logger = logging.getLogger(__name__)

_WAITING_MAX: Final = 2
"""Idle threads beyond this number end."""
_NEVER: Final = float("inf")
_HELPED_MAX: Final = 8
"""With more calls in flight, a receiver thread receives and wakes the waiting threads."""
_SPIN_S: Final = 0.0006
"""Spin time: an idle broker answers a small call in half of it."""


class OnReady(Protocol):
    """A function that any thread calls once, when a reception is over.

    It does not refer to the reception: both would be freed, with the response, only by a garbage collection.
    """

    def __call__(self, failure: Exception | None, *, is_expired: bool) -> None:
        """``failure`` is None or the error. ``is_expired`` is true if the deadline has passed."""


@dataclass(slots=True, eq=False)
class Reception:
    """Expected response of a call."""

    sock: FrameSocket
    deadline: float
    on_ready: OnReady
    is_expired: bool = False

    def expire(self) -> None:
        """Shut the connection after the deadline, which ends the reception."""
        self.is_expired = True
        self.sock.shut()


class Receiver:
    """Receiver threads of one client. Thread safe; they start with the first call."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._lock = threading.Lock()
        self._epoll = select.epoll()
        self._bell = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._epoll.register(self._bell, select.EPOLLIN)
        self._under_way: dict[int, Reception] = {}
        self._known: set[int] = set()
        self._next_deadline = _NEVER
        self._waiting = 0
        self._threads = 0
        self._started = 0
        self._is_closed = self._is_released = False
        self._helper: int | None = None
        self._spinning = Spinning(_SPIN_S)
        self._helper_bell = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)

    def receive(self, reception: Reception) -> bool:
        """Wait for a response, and send the rest of its request; returns false after ``close``."""
        with self._lock:
            if self._is_closed:
                return False
            self._put(reception)
        return True

    def _put(self, reception: Reception) -> None:
        self._under_way[reception.sock.fd] = reception
        if not self._waiting:
            self._start_thread()
        if reception.deadline < self._next_deadline:
            self._next_deadline = reception.deadline
            os.eventfd_write(self._bell, 1)
        self._arm(reception.sock)

    def _arm(self, sock: FrameSocket) -> None:
        events = select.EPOLLIN | select.EPOLLRDHUP | select.EPOLLONESHOT
        if not sock.is_sent:
            events |= select.EPOLLOUT
        if sock.fd in self._known:
            self._epoll.modify(sock.fd, events)
        else:
            self._known.add(sock.fd)
            self._epoll.register(sock.fd, events)

    def forget(self, sock: FrameSocket) -> None:
        """Forget a connection before its close, because its descriptor may be reused."""
        with self._lock:
            self._known.discard(sock.fd)

    def _start_thread(self) -> None:
        self._threads += 1
        self._started += 1
        self._waiting += 1  # the thread is about to wait
        threading.Thread(target=self._run, name=f"{self._name}-{self._started}", daemon=True).start()

    def _run(self) -> None:
        while True:
            left_s = self._next_deadline - time.monotonic()
            events = self._epoll.poll(None if left_s == _NEVER else max(left_s, 0.0), 1)
            with self._lock:
                if self._is_closed:
                    break
            if not events:
                self._expire()
            for fd, _ in events:
                if fd == self._bell:
                    _silence(self._bell)
                else:
                    self._serve(fd)
            with self._lock:
                if self._waiting > _WAITING_MAX:
                    break
        self._end()

    def _end(self) -> None:
        with self._lock:
            self._waiting -= 1
            self._threads -= 1
            if self._is_closed and self._threads:
                os.eventfd_write(self._bell, 1)  # wake the next thread, in case another has read the bell
            self._release_unused()

    def _release_unused(self) -> None:
        """Close the descriptors after ``close``, when no thread uses them. Call with the lock held."""
        if self._is_closed and not self._threads and self._helper is None and not self._is_released:
            self._is_released = True
            self._epoll.close()
            os.close(self._bell)
            os.close(self._helper_bell)

    def _serve(self, fd: int) -> None:
        with self._lock:
            reception = self._under_way.pop(fd, None)  # belongs to this thread until it is put back
        if reception is None:
            return
        is_ready, failure = _advanced(reception)
        if not is_ready and self._put_back(reception):
            return
        with self._lock:
            self._waiting -= 1
            if not self._waiting and not self._is_closed:
                self._start_thread()
        _tell(reception, failure if is_ready else _closed())
        with self._lock:
            self._waiting += 1

    def _put_back(self, reception: Reception) -> bool:
        with self._lock:
            if not self._is_closed:
                self._put(reception)
            return not self._is_closed

    def _expire(self) -> None:
        """Shut the connections of expired calls, which ends the calls."""
        now = time.monotonic()
        with self._lock:
            expired = [each for each in self._under_way.values() if each.deadline <= now]
            left = [each.deadline for each in self._under_way.values() if each.deadline > now]
            self._next_deadline = min(left, default=_NEVER)
        for reception in expired:
            reception.expire()

    # --- receiving in waiting threads -----------------------------------------------------------------------------

    def help(self, is_over: Callable[[], bool], timeout_s: float) -> bool:
        """Receive in the current thread until ``is_over``, no reception is left, or ``timeout_s``.

        The calls' callbacks also run in it. Other changes of ``is_over`` must be followed by ``wake``. Returns false,
        at once, if there is nothing to receive, or another thread receives.
        """
        with Uninterrupted() as block:
            with self._lock:
                if self._is_closed or self._helper is not None or not 0 < len(self._under_way) <= _HELPED_MAX:
                    return False
                self._helper = threading.get_ident()
                taken, self._under_way = self._under_way, {}
                for fd in taken:
                    self._epoll.modify(fd, select.EPOLLONESHOT)  # else the end of a connection is reported for ever
            try:
                self._help(taken, is_over, time.monotonic() + timeout_s, block)
            finally:
                for reception in taken.values():
                    if not self._put_back(reception):
                        _tell(reception, _closed())
                with self._lock:
                    self._helper = None
                    self._release_unused()
            return True

    def _help(
        self, taken: dict[int, Reception], is_over: Callable[[], bool], until: float, block: Uninterrupted
    ) -> None:
        poll = select.poll()
        poll.register(self._helper_bell, select.POLLIN)
        for fd, reception in taken.items():
            poll.register(fd, select.POLLIN | (0 if reception.sock.is_sent else select.POLLOUT))
        while taken and not self._is_closed and not is_over():
            now = time.monotonic()
            if now >= until:
                return
            for reception in taken.values():
                if reception.deadline <= now:
                    reception.expire()
            first = min(reception.deadline for reception in taken.values())
            wait = partial(self._spinning.wait, poll.poll, max(min(until, first) - now, 0.0))
            for fd, _ in block.wait(wait):
                if fd == self._helper_bell:
                    _silence(fd)
                    continue
                reception = taken[fd]
                is_ready, failure = _advanced(reception)
                if is_ready:
                    poll.unregister(fd)
                    del taken[fd]
                    _tell(reception, failure)
                elif reception.sock.is_sent:
                    poll.modify(fd, select.POLLIN)

    def wake(self) -> None:
        """Let the helping thread check whether it is over; for other threads."""
        helper = self._helper
        if helper is not None and helper != threading.get_ident():
            with self._lock:
                if not self._is_closed:
                    os.eventfd_write(self._helper_bell, 1)

    def close(self) -> None:
        """End the threads and the calls in flight: ``on_ready`` is called here with the error."""
        with self._lock:
            if self._is_closed:
                return
            self._is_closed = True
            left = list(self._under_way.values())
            self._under_way.clear()
            for bell in (self._bell, self._helper_bell):
                os.eventfd_write(bell, 1)
            self._release_unused()
        for reception in left:
            _tell(reception, _closed())


def _silence(bell: int) -> None:
    with suppress(BlockingIOError):  # another thread was faster
        os.eventfd_read(bell)


def _advanced(reception: Reception) -> tuple[bool, Exception | None]:
    """Advance a reception; returns whether it is over, and its error."""
    try:
        return reception.sock.advance(), None
    except Exception as error:  # noqa: BLE001 - it is the call's outcome
        return True, error


def _closed() -> Exception:
    return ConnectionResetError("the client was closed")


def _tell(reception: Reception, failure: Exception | None) -> None:
    try:
        reception.on_ready(failure, is_expired=reception.is_expired)
    except Exception:
        logger.exception("a callback of a call has failed")
