"""The operations that wait for keys: a partition, a group, a transaction.

Source: Kafka's ``DelayedOperationPurgatory``. Completed operations leave at once, so there is nothing to purge.

Invariants:

- An operation is watched under each of its keys from when it is put here until it is completed, and never after.
- Every watched operation has a timer: whatever happens to its keys, it is completed in the end.
- A key that nobody waits for costs nothing.
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
    """``delayed`` operations wait, as ``watched`` pairs of an operation and a key; the others are since the start."""

    delayed: int
    watched: int
    completed: int
    expired: int


class Purgatory(Generic[Key]):
    """Operations of one kind, by the keys whose changes may complete them. For the event loop's thread alone."""

    def __init__(self, name: str, timer: Timer) -> None:
        """``name`` is for people: ``fetch``, ``join``."""
        self.name: Final = name
        self._timer: Final = timer
        # Dictionaries for sets that keep their order: those who came first are looked at first.
        self._watchers: Final[dict[Key, dict[DelayedOperation, None]]] = {}
        self._delayed = 0
        self._completed = 0
        self._expired = 0
        self._is_closed = False

    def complete_or_watch(self, operation: DelayedOperation, keys: Sequence[Key]) -> bool:
        """Complete an operation now if its condition holds, else let it wait for ``keys``. Whether it is completed.

        Once this purgatory is closed nothing waits: the operation is completed, whatever its condition.
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
        # What brings the condition about may have happened between the first look and the watching.
        return operation.try_complete()

    def check(self, key: Key) -> int:
        """Something has changed about a key: look at all that wait for it. Returns how many were completed."""
        completed = 0
        for operation in list(self._watchers.get(key, ())):
            if not operation.is_completed and operation.try_complete():
                completed += 1
        return completed

    def complete_all(self, key: Key) -> int:
        """Complete everything that waits for a key, whatever its condition: the key is gone. Returns how many."""
        return sum(operation.force_complete() for operation in list(self._watchers.get(key, ())))

    def waiting(self, key: Key) -> int:
        """How many operations wait for a key."""
        return len(self._watchers.get(key, ()))

    def close(self) -> None:
        """Complete everything that waits, and let nothing wait any more."""
        self._is_closed = True
        for key in list(self._watchers):
            self.complete_all(key)

    def statistics(self) -> PurgatoryStatistics:
        """The present numbers."""
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
