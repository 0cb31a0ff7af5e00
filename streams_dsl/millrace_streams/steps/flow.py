"""Order: where each record of a batch stands in the depth-first course that Kafka Streams takes, record by record.

A task runs a whole batch through one operator after the other, but must give what it would have given had each record
gone through all operators before the next one began. That is a question of order alone, and only where ways that parted
meet again, in an operator with several inputs. So every row on an edge has *marks*, a row of whole numbers that are
compared from the left:

* ``ROOT``, which record of the task's input it comes from;
* ``HOP``, ``TURN`` and ``LANE``, which only a repartition changes: what went through a topic comes after all that the
  same record did before it, and of several topics one record of each in turn;
* one for each fork of the graph whose ways meet again: where the row stood at the fork, and which way it took.

A step knows nothing of marks: it says of each output row which input row caused it, and the row inherits its marks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from millrace_streams.errors import UserFunctionError
from millrace_streams.layout import Layout
from millrace_streams.steps.batch import Batch, Rows

ROOT: Final = 0
HOP: Final = 1
TURN: Final = 2
LANE: Final = 3
FIXED: Final = 4
"""Marks that every row has; those of forks follow."""
LAST: Final = 2**62
"""A mark after all others."""

Marks = npt.NDArray[np.int64]
"""One row of marks for each row of a batch."""


class Origin(NamedTuple):
    """Where a record was read."""

    topic: str
    partition: int
    offset: int


@dataclass(frozen=True, slots=True)
class Flow:
    """A batch with the marks of its rows."""

    batch: Batch
    marks: Marks

    def after_fork(self, fork: int, way: int, ways: int) -> Flow:
        """The same, marked as having taken way number ``way`` of a fork."""
        marks = self.marks.copy()
        marks[:, FIXED + fork] = np.arange(len(marks)) * ways + way
        return Flow(self.batch, marks)


@dataclass(frozen=True, slots=True)
class Ticks:
    """Stream time as a task sees it: times of the records that come in, with their marks."""

    times: list[int]
    marks: Marks


@dataclass(frozen=True, slots=True, kw_only=True)
class Inputs:
    """What a step is given for a batch: one batch per parent, and the order in which their rows are to be taken.

    ``sides`` and ``rows`` say for each turn which parent's which row; with one parent, turn and row are the same.
    """

    batches: tuple[Batch, ...]
    marks: Marks
    sides: list[int]
    rows: list[int]
    origin: Callable[[int], Origin]
    ticks: Ticks | None = None
    wall_clock_ms: int = 0

    @property
    def batch(self) -> Batch:
        """The only parent's batch."""
        [batch] = self.batches
        return batch

    def turns(self) -> Iterator[tuple[int, int, int]]:
        """Turn, side and row, in order."""
        return zip(range(len(self.rows)), self.sides, self.rows, strict=True)

    def origin_of(self, turn: int) -> Origin:
        """Where the record came from that a turn goes back to."""
        return self.origin(int(self.marks[turn, ROOT]))

    @contextmanager
    def blaming(self, node: str, what: object) -> Iterator[Place]:
        """Turn what a user's function raises into ``UserFunctionError``, with the node's name and the record's place.

        The caller keeps ``place.turn`` at the record in hand.
        """
        place = Place()
        try:
            yield place
        except UserFunctionError:
            raise
        except Exception as error:
            where = "no record"
            if place.turn < len(self.rows):
                topic, partition, offset = self.origin_of(place.turn)
                time_ms = self.batches[self.sides[place.turn]].times[self.rows[place.turn]]
                where = f"record of topic {topic}, partition {partition}, offset {offset}, timestamp {time_ms}"
            raise UserFunctionError(f"{node}: {what} raised {type(error).__name__}: {error} ({where})") from error


@dataclass(slots=True)
class Place:
    """The turn that is being worked on."""

    turn: int = 0


@dataclass(frozen=True, slots=True)
class Output:
    """What a step gives: a batch, and the turns that caused its rows; None when row by row the input's own.

    ``dropped`` is Kafka's ``dropped-records``. ``marks`` are given by the few steps whose rows nothing caused.
    """

    batch: Batch
    causes: Rows | list[int] | None = None
    dropped: int = 0
    marks: Marks | None = None

    def flow(self, inputs: Inputs) -> Flow:
        """The batch with the marks that its rows inherit."""
        if self.marks is not None:
            return Flow(self.batch, self.marks)
        if self.causes is None:
            return Flow(self.batch, inputs.marks)
        return Flow(self.batch, inputs.marks[np.asarray(self.causes, dtype=np.int64)])


@dataclass(slots=True)
class Emitted:
    """An output in the making, row by row; as lists, since a tuple for each would keep the garbage collector busy."""

    causes: list[int] = field(default_factory=list)
    keys: list[Any] = field(default_factory=list)
    values: list[Any] = field(default_factory=list)
    times: list[int] = field(default_factory=list)
    olds: list[Any] = field(default_factory=list)
    latest: list[bool] = field(default_factory=list)
    dropped: int = 0

    def add(self, cause: int, key: Any, value: Any, time_ms: int, old: Any = None, latest: bool = True) -> None:
        """One row, caused by turn ``cause``."""
        self.causes.append(cause)
        self.keys.append(key)
        self.values.append(value)
        self.times.append(time_ms)
        self.olds.append(old)
        self.latest.append(latest)

    def output(self, layout: Layout) -> Output:
        """The finished output."""
        changes = self.olds if layout.table else None
        versions = self.latest if layout.table else None
        batch = Batch.of_lists(layout, self.keys, self.values, self.times, olds=changes, latest=versions)
        return Output(batch, self.causes, self.dropped)


def interleave(flows: Sequence[Flow]) -> tuple[Marks, list[int], list[int]]:
    """The order in which rows of several flows are taken: their marks, and side and row of each turn."""
    if len(flows) == 1:
        marks = flows[0].marks
        return marks, [0] * len(marks), list(range(len(marks)))
    marks = np.concatenate([flow.marks for flow in flows])
    sides = np.concatenate([np.full(len(flow.marks), side) for side, flow in enumerate(flows)])
    rows = np.concatenate([np.arange(len(flow.marks)) for flow in flows])
    order = np.lexsort(marks.T[::-1])
    return marks[order], sides[order].tolist(), rows[order].tolist()
