"""The task of a bucket from one batch to the next: one that lives on, or one that is made over what was kept.

Invariant: what a task that was not ended has changed is lost with it; the next one begins where the last ended.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from millrace_streams.state.rows import LIMITS, KeptRows, Limits
from millrace_streams.state.variables import StateVariables
from millrace_streams.steps.operator import AnyStore, AnyStoreSpec
from millrace_streams.steps.packed_state import kept_rows, save, store_over
from millrace_streams.steps.task import Task, TaskResult


class Tasks(Protocol):
    """Gives a bucket's task for each batch."""

    def begin(self) -> Task:
        """The task as the last batch left it."""
        ...

    def end(self, task: Task, result: TaskResult) -> None:
        """Keep what a batch changed: the next one goes on from there."""
        ...


@dataclass(frozen=True, slots=True)
class LivingTask:
    """A task that stays in memory. A batch that fails on it ends its use."""

    task: Task

    def begin(self) -> Task:
        """The task."""
        return self.task

    def end(self, task: Task, result: TaskResult) -> None:
        """Nothing is to be done: the task has its changes."""


@dataclass(slots=True)
class KeptTasks:
    """Tasks made over the rows in which a bucket's stores lie; ``make`` makes one of its stores.

    ``buckets`` is how many there are now.
    """

    make: Callable[[Mapping[str, AnyStore]], Task]
    specs: Sequence[AnyStoreSpec]
    variables: Mapping[str, StateVariables]
    buckets: int
    limits: Limits = LIMITS
    _kept: dict[str, KeptRows] = field(default_factory=dict)

    def begin(self) -> Task:
        """A task over the rows. Raises ``IncompatibleStateError`` when they are not its own."""
        if not self._kept:
            self._kept = {
                spec.name: kept_rows(spec, self.variables[spec.name], self.limits, buckets=self.buckets)
                for spec in self.specs
            }
        return self.make({spec.name: store_over(spec, self._kept[spec.name]) for spec in self.specs})

    def end(self, task: Task, result: TaskResult) -> None:
        """Leave what the batch changed in the rows, which are read again when the next begins."""
        save(task.stores, self._kept, result)
        self._kept = {}
