"""Delayed operations by their keys: a partition, a group, a transaction.

Source: Kafka's ``DelayedOperationPurgatory``. Completed operations leave at once, so there is nothing to purge.

Invariants:

- An operation is watched under each of its keys until it is completed, and never afterwards.
- Every watched operation has a timer, so it is completed in the end whatever happens to its keys.
- A key without operations takes no memory.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

from millrace_broker.purgatory.operation import DelayedOperation
from millrace_broker.purgatory.timer import Timer

Key = TypeVar("Key", bound=Hashable)


@dataclass(frozen=True, slots=True)
class PurgatoryStatistics:
    """Numbers of a purgatory.

    ``delayed`` counts waiting operations, and ``watched`` their pairs with a key. The other numbers count since the
    start.
    """

    delayed: int
    watched: int
    completed: int
    expired: int


class Purgatory(Generic[Key]):
    """Operations of one kind, by the keys whose changes may complete them. Only for the event loop's thread."""

    def __init__(self, name: str, timer: Timer) -> None:
        """Create an empty purgatory. ``name`` is for people, such as ``fetch`` or ``join``."""
        self.name: Final = name
        self._timer: Final = timer
        # A dictionary is used as an ordered set: the operations that came first are checked first.
        self._watchers: Final[dict[Key, dict[DelayedOperation, None]]] = {}
        self._delayed = 0
        self._completed = 0
        self._expired = 0
        self._is_closed = False

    def complete_or_watch(self, operation: DelayedOperation, keys: Sequence[Key]) -> bool:
        """Complete an operation if its condition holds, else let it wait for ``keys``. Return whether it is completed.

        A closed purgatory completes the operation whatever its condition.
        """
        if operation.try_complete():
            return True
        if self._is_closed:
            return operation.force_complete()
        distinct = list(dict.fromkeys(keys))
        for key in distinct:
            self._watchers.setdefault(key, {})[operation] = None
        self._delayed += 1
        timer = self._timer.schedule(operation.delay_ms, lambda: self._expire(operation))
        operation.waits(timer, lambda: self._forget(operation, distinct))
        # The condition may have become true between the first check and the watching.
        return operation.try_complete()

    def check(self, key: Key) -> int:
        """Check the operations that wait for a changed key. Return the number completed."""
        completed = 0
        for operation in list(self._watchers.get(key, ())):
            if not operation.is_completed and operation.try_complete():
                completed += 1
        return completed

    def complete_all(self, key: Key) -> int:
        """Complete all operations of a deleted key, whatever their conditions. Return their number."""
        return sum(operation.force_complete() for operation in list(self._watchers.get(key, ())))

    def waiting(self, key: Key) -> int:
        """Return the number of operations that wait for a key."""
        return len(self._watchers.get(key, ()))

    def close(self) -> None:
        """Complete all operations, now and later."""
        self._is_closed = True
        for key in list(self._watchers):
            self.complete_all(key)

    def statistics(self) -> PurgatoryStatistics:
        """Return the current statistics."""
        watched = sum(len(operations) for operations in self._watchers.values())
        return PurgatoryStatistics(self._delayed, watched, self._completed, self._expired)

    def _expire(self, operation: DelayedOperation) -> None:
        if not operation.is_completed:
            self._expired += 1
            operation.expire()

    def _forget(self, operation: DelayedOperation, keys: Sequence[Key]) -> None:
        self._delayed -= 1
        self._completed += 1
        for key in keys:
            operations = self._watchers[key]
            del operations[operation]
            if not operations:
                del self._watchers[key]
