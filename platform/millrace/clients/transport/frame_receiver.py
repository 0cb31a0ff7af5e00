"""Threads that wait for the answers to calls which nobody else waits for.

A call is begun in the caller's own thread: so between it and its answer no thread has to be woken but the one that
receives. Invariants:

- While a call is under way, some thread waits for its answer: who is about to tell an outcome, which may take long,
  sees to it that another one waits.
- A connection under way is armed for one event at a time; the thread that gets it is the only one that uses the
  connection, until it arms it again.
- The calls' deadlines are watched by all threads that wait: none sleeps beyond the first.
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
from typing import Final

from millrace.clients.transport.frame_socket import FrameSocket

logger = logging.getLogger(__name__)

_WAITING_MAX: Final = 2
"""Threads beyond these end when there is nothing to do."""
_NEVER: Final = float("inf")


@dataclass(slots=True, eq=False)
class Reception:
    """A response that is awaited; ``on_ready`` is told once, in some thread, that it is there or what went wrong."""

    sock: FrameSocket
    deadline: float
    on_ready: Callable[[Exception | None], None]
    is_expired: bool = False


class Receiver:
    """The threads of one client. Thread safe; they start with the first call."""

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
        self._is_closed = False

    def receive(self, reception: Reception) -> bool:
        """Wait for a response, and send what is left of its request; false once closed."""
        with self._lock:
            if self._is_closed:
                return False
            if not self._waiting:
                self._start_thread()
            if self._put(reception):
                os.eventfd_write(self._bell, 1)
        return True

    def _put(self, reception: Reception) -> bool:
        """Await a response; true if its deadline is the first now."""
        self._under_way[reception.sock.fd] = reception
        is_first = reception.deadline < self._next_deadline
        if is_first:
            self._next_deadline = reception.deadline
        self._arm(reception.sock)
        return is_first

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
        """A connection is about to be closed, and its descriptor to be another's."""
        with self._lock:
            self._known.discard(sock.fd)

    def _start_thread(self) -> None:
        self._threads += 1
        self._started += 1
        self._waiting += 1  # it is about to
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
                    self._hear_bell()
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
            if not self._is_closed:
                return
            if self._threads:
                os.eventfd_write(self._bell, 1)  # the next one, if somebody has heard it before it was the last time
                return
        self._epoll.close()
        os.close(self._bell)

    def _hear_bell(self) -> None:
        with suppress(BlockingIOError):  # another thread was faster
            os.eventfd_read(self._bell)

    def _serve(self, fd: int) -> None:
        with self._lock:
            reception = self._under_way.pop(fd, None)  # it is this thread's until it is put back
        if reception is None:
            return
        failure: Exception | None = None
        try:
            if not reception.sock.advance():
                with self._lock:
                    if not self._is_closed:
                        self._put(reception)
                        return
                failure = _closed()
        except Exception as error:  # noqa: BLE001 - it is the call's outcome
            failure = error
        with self._lock:
            self._waiting -= 1
            if not self._waiting and not self._is_closed:
                self._start_thread()
        _tell(reception, failure)
        with self._lock:
            self._waiting += 1

    def _expire(self) -> None:
        """End the connections of calls whose time is up, which ends these."""
        now = time.monotonic()
        with self._lock:
            expired = [each for each in self._under_way.values() if each.deadline <= now]
            left = [each.deadline for each in self._under_way.values() if each.deadline > now]
            self._next_deadline = min(left, default=_NEVER)
        for reception in expired:
            reception.is_expired = True
            reception.sock.shut()

    def close(self) -> None:
        """End the threads, and what is under way: ``on_ready`` is told so here."""
        with self._lock:
            if self._is_closed:
                return
            self._is_closed = True
            left = list(self._under_way.values())
            self._under_way.clear()
            if self._threads:
                os.eventfd_write(self._bell, 1)
            else:
                self._epoll.close()
                os.close(self._bell)
        for reception in left:
            _tell(reception, _closed())


def _closed() -> Exception:
    return ConnectionResetError("the client was closed")


def _tell(reception: Reception, failure: Exception | None) -> None:
    try:
        reception.on_ready(failure)
    except Exception:
        logger.exception("what was to follow a call has failed")
