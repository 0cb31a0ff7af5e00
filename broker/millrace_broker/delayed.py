"""Waiting for records to arrive: who waits for which partitions, woken by appends instead of looking again and again.

This is the one place where a call is delayed; everything about *how* (today a future and a timer per waiter) stays
in here.

Invariants
* All methods run in the event loop's thread; waiting ends with the call that waits, also when it is cancelled.
* A waiter is registered before its caller looks at the log for the last time, so that no append falls between.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass
from types import TracebackType
from typing import Final, Self

PartitionKey = tuple[str, int]
"""Topic name and partition number."""


@dataclass(frozen=True, slots=True)
class ArrivalStatistics:
    """How many calls wait, and on how many partitions."""

    waiters: int
    partitions: int


class Arrivals:
    """Tells waiters of the bytes that arrive in their partitions."""

    def __init__(self) -> None:
        self._waiters: dict[PartitionKey, set[ArrivalWaiter]] = {}
        self._is_closed = False

    def arrived(self, key: PartitionKey, size_bytes: int) -> None:
        """Say that ``size_bytes`` of records were appended and may be read."""
        for waiter in self._waiters.get(key, ()):
            waiter._add(size_bytes)

    def changed(self, key: PartitionKey) -> None:
        """Say that a partition changed in a way that its waiters must see at once (it was deleted, say)."""
        for waiter in self._waiters.get(key, ()):
            waiter._finish()

    def close(self) -> None:
        """Let nobody wait any more, now or later: the broker stops."""
        self._is_closed = True
        for key in list(self._waiters):
            self.changed(key)

    def watch(self, keys: Iterable[PartitionKey]) -> ArrivalWaiter:
        """A context in which arrivals in ``keys`` are counted."""
        return ArrivalWaiter(self._waiters, keys, is_closed=self._is_closed)

    def statistics(self) -> ArrivalStatistics:
        """The present numbers."""
        waiting = {waiter for waiters in self._waiters.values() for waiter in waiters}
        return ArrivalStatistics(waiters=len(waiting), partitions=len(self._waiters))


class ArrivalWaiter:
    """One call's wait. Used as a context manager, so that it is forgotten however the call ends."""

    def __init__(
        self, waiters: dict[PartitionKey, set[ArrivalWaiter]], keys: Iterable[PartitionKey], *, is_closed: bool
    ) -> None:
        self._waiters: Final = waiters
        self._keys: Final = tuple(keys)
        self._arrived_bytes = 0
        self._wanted_bytes = 1
        self._event = asyncio.Event()
        if is_closed:
            self._event.set()

    def __enter__(self) -> Self:
        for key in self._keys:
            self._waiters.setdefault(key, set()).add(self)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for key in self._keys:
            waiters = self._waiters.get(key)
            if waiters is not None:
                waiters.discard(self)
                if not waiters:
                    del self._waiters[key]

    async def wait(self, *, wanted_bytes: int, timeout_s: float) -> bool:
        """Wait until ``wanted_bytes`` arrived since the context began, or a change; False after ``timeout_s``."""
        self._wanted_bytes = wanted_bytes
        self._check()
        try:
            async with asyncio.timeout(timeout_s):
                await self._event.wait()
        except TimeoutError:
            return False
        return True

    def _add(self, size_bytes: int) -> None:
        self._arrived_bytes += size_bytes
        self._check()

    def _finish(self) -> None:
        self._event.set()

    def _check(self) -> None:
        if self._arrived_bytes >= self._wanted_bytes:
            self._event.set()
