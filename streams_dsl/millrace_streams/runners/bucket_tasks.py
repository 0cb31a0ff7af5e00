"""Tasks of a bucket across batches, kept or rebuilt.

Invariant: changes of a task that was not ended are lost with it, and the next task starts where the last one ended.
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
    """Provider of a bucket's task for each batch."""

    def begin(self) -> Task:
        """Return the task in the state after the last batch."""
        ...

    def end(self, task: Task, result: TaskResult) -> None:
        """Store the changes of a batch for the next one."""
        ...


@dataclass(frozen=True, slots=True)
class LivingTask:
    """A task that stays in memory. After a failed batch it must not be used again."""

    task: Task

    def begin(self) -> Task:
        """Return the task."""
        return self.task

    def end(self, task: Task, result: TaskResult) -> None:
        """Do nothing, because the task holds its changes."""


@dataclass(slots=True)
class KeptTasks:
    """Tasks of a bucket, each created over the stored rows.

    ``make`` creates a task from the bucket's stores. ``buckets`` is the current number of buckets.
    """

    make: Callable[[Mapping[str, AnyStore]], Task]
    specs: Sequence[AnyStoreSpec]
    variables: Mapping[str, StateVariables]
    buckets: int
    limits: Limits = LIMITS
    _kept: dict[str, KeptRows] = field(default_factory=dict)

    def begin(self) -> Task:
        """Create a task over the stored rows. Raises ``IncompatibleStateError`` if they belong to another topology."""
        if not self._kept:
            self._kept = {
                spec.name: kept_rows(spec, self.variables[spec.name], self.limits, buckets=self.buckets)
                for spec in self.specs
            }
        return self.make({spec.name: store_over(spec, self._kept[spec.name]) for spec in self.specs})

    def end(self, task: Task, result: TaskResult) -> None:
        """Write the changes of the batch to the rows, which the next ``begin`` reads again."""
        save(task.stores, self._kept, result)
        self._kept = {}
