"""Order: where each record of a batch stands in the depth-first course that Kafka Streams takes, record by record.

A task runs a whole batch through one operator after the other, but must give what it would have given had each record
gone through all operators before the next one began. That is a question of order alone, and only where ways that parted
meet again, in an operator with several inputs. So every row on an edge has *marks*, a row of whole numbers that are
compared from the left:

* ``ROOT``, which record of the task's input it comes from;
* ``REPARTITIONS`` (how many it went through), ``TURN`` and ``CHANNEL`` (the number of the last one), which only a
  repartition changes: what went through a topic comes after all that the same record did before it, and of several
  topics one record of each in turn;
* one for each fork of the graph whose ways meet again: where the row stood at the fork, and which way it took.

A step knows nothing of marks: it says of each output row which input row caused it, and the row inherits its marks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from millrace.records import Headers
from millrace_streams.errors import TopologyError, UserFunctionError
from millrace_streams.functions import PythonFunction
from millrace_streams.layout import Layout
from millrace_streams.processors import FIRST_TASK, TaskId
from millrace_streams.steps.batch import Batch, Rows

ROOT: Final = 0
REPARTITIONS: Final = 1
TURN: Final = 2
CHANNEL: Final = 3
FIXED: Final = 4
"""Marks that every row has; those of forks follow."""
LAST: Final = 2**62
"""A mark after all others."""

Marks = npt.NDArray[np.int64]
"""One row of marks for each row of a batch."""


class Origin(NamedTuple):
    """Where a record was read, and its headers."""

    topic: str
    partition: int
    offset: int
    headers: Headers = ()


@dataclass(frozen=True, slots=True)
class Flow:
    """A batch with the marks of its rows.

    ``children`` says which child of a processor each row is addressed to; None is all of them.
    """

    batch: Batch
    marks: Marks
    children: Sequence[str | None] | None = None

    def after_fork(self, fork: int, way: int, ways: int) -> Flow:
        """The same, marked as having taken way number ``way`` of a fork.

        The place at the fork is counted for each record of the task's input by itself: ways that part may be gone on
        different stages, each of which sees other records as well.
        """
        marks = self.marks.copy()
        roots = marks[:, ROOT]
        places = np.arange(len(marks)) - np.searchsorted(roots, roots, side="left")
        marks[:, FIXED + fork] = places * ways + way
        return Flow(self.batch, marks, self.children)

    def for_child(self, child: str) -> Flow:
        """The rows that a child of a processor is to take."""
        if self.children is None:
            return self
        rows = np.asarray([row for row, name in enumerate(self.children) if name in (None, child)], dtype=np.int64)
        return Flow(self.batch.take(rows), self.marks[rows])


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
    sides: Sequence[int]
    rows: Sequence[int]
    origin: Callable[[int], Origin]
    ticks: Ticks | None = None
    wall_clock_ms: int = 0
    task: TaskId = FIRST_TASK
    application_id: str = ""

    @property
    def batch(self) -> Batch:
        """The only parent's batch."""
        [batch] = self.batches
        return batch

    def turns(self) -> Iterator[tuple[int, int, int]]:
        """Turn, side and row, in order."""
        return zip(range(len(self.rows)), self.sides, self.rows, strict=True)

    def by_turn(self) -> tuple[list[Any], list[Any], list[int]]:
        """Keys, values and times of all parents' rows, in order."""
        keys, values, times = ([getattr(batch, name) for batch in self.batches] for name in ("keys", "values", "times"))
        return self._in_order(keys), self._in_order(values), self._in_order(times)

    def olds_by_turn(self) -> list[Any]:
        """What the changes of all parents replace, in order."""
        return self._in_order([batch.olds for batch in self.batches])

    def _in_order(self, lists: list[list[Any]]) -> list[Any]:
        if len(lists) == 1:
            return lists[0]
        begins = np.cumsum([0, *(len(each) for each in lists)])
        places = begins[np.asarray(self.sides, dtype=np.int64)] + np.asarray(self.rows, dtype=np.int64)
        whole = list(chain.from_iterable(lists))
        return list(map(whole.__getitem__, places.tolist()))

    def origin_of(self, turn: int) -> Origin:
        """Where the record came from that a turn goes back to."""
        return self.origin(int(self.marks[turn, ROOT]))

    def call(
        self, node: str, function: PythonFunction, turns: Sequence[int] | Rows, *columns: Sequence[Any]
    ) -> list[Any]:
        """What a user's function gives for each record; ``columns`` are the keys and the values, by record.

        Raises ``UserFunctionError`` naming the node and the place of the record, whose turn is in ``turns``.
        """
        results: list[Any] = []
        with self.blaming(node, function) as place:
            try:
                # As far as it got, what was given is in the list: so nothing has to be noted per record.
                results.extend(map(function.call, *(columns if function.takes_key else columns[1:])))
            except Exception:
                place.turn = int(turns[len(results)])
                raise
        return results

    def call_rows(self, node: str, function: PythonFunction) -> list[Any]:
        """The same for all rows of the only parent."""
        batch = self.batch
        keys = batch.keys if function.takes_key else ()
        return self.call(node, function, range(batch.height), keys, batch.values)

    def call_present(
        self,
        node: str,
        function: PythonFunction,
        keys: Sequence[Any],
        values: Sequence[Any],
        turns: Sequence[int] | None = None,
    ) -> list[Any]:
        """The same, None where there is no value; ``turns`` are those of the values, by default all in order."""
        turns = turns if turns is not None else range(len(values))
        rows = [row for row, value in enumerate(values) if value is not None]
        if len(rows) == len(values):
            return self.call(node, function, turns, keys, values)
        present = [list(map(column.__getitem__, rows)) for column in (keys, values)]
        results: list[Any] = [None] * len(values)
        for row, result in zip(rows, self.call(node, function, [turns[row] for row in rows], *present), strict=True):
            results[row] = result
        return results

    @contextmanager
    def blaming(self, node: str, what: object) -> Iterator[Place]:
        """Turn what a user's function raises into ``UserFunctionError``, with the node's name and the record's place.

        The caller keeps ``place.turn`` at the record in hand.
        """
        place = Place()
        try:
            yield place
        except (UserFunctionError, TopologyError):
            raise
        except Exception as error:
            text = f"{what} raised {type(error).__name__}: {error}"
            raise self.failure(node, text, place.turn) from error

    def failure(self, node: str, text: str, turn: int | None) -> UserFunctionError:
        """The error of the record that a turn goes back to; of none, if there is no such turn."""
        if turn is None or turn >= len(self.rows):
            return failure_of(node, text, None)
        time_ms = self.batches[self.sides[turn]].times[self.rows[turn]]
        return failure_of(node, text, self.origin_of(turn), time_ms)


def failure_of(node: str, text: str, origin: Origin | None, time_ms: int = 0) -> UserFunctionError:
    """The error of the record that was read there, as a node came to it; of none, if no record is to blame."""
    if origin is None:
        return UserFunctionError(f"{node}: {text} (no record)", node=node)
    topic, partition, offset, _ = origin
    where = f"record of topic {topic}, partition {partition}, offset {offset}, timestamp {time_ms}"
    return UserFunctionError(f"{node}: {text} ({where})", node=node, topic=topic, partition=partition, offset=offset)


@dataclass(slots=True)
class Place:
    """The turn that is being worked on."""

    turn: int = 0


@dataclass(frozen=True, slots=True)
class Output:
    """What a step gives: a batch, and the turns that caused its rows; None when row by row the input's own.

    ``dropped`` is Kafka's ``dropped-records``. ``marks`` are given by the few steps whose rows nothing caused,
    ``children`` by processors.
    """

    batch: Batch
    causes: Rows | list[int] | None = None
    dropped: int = 0
    marks: Marks | None = None
    children: Sequence[str | None] | None = None

    def turn_of(self, row: int) -> int | None:
        """The turn that caused a row, if one did."""
        if self.marks is not None:
            return None
        return row if self.causes is None else int(self.causes[row])

    def last_of_keys(self) -> Output:
        """The last row of each key alone; rows have causes."""
        rows = np.sort(np.fromiter({key: row for row, key in enumerate(self.batch.keys)}.values(), dtype=np.int64))
        return replace(self, batch=self.batch.take(rows), causes=np.asarray(self.causes, dtype=np.int64)[rows])

    def in_order(self) -> Output:
        """The same, its rows in the order of what caused them; rows of one cause stay as they are."""
        causes = np.asarray(self.causes, dtype=np.int64)
        order = np.argsort(causes, kind="stable")
        return Output(self.batch.take(order), causes[order], self.dropped)

    def flow(self, inputs: Inputs) -> Flow:
        """The batch with the marks that its rows inherit."""
        if self.marks is not None:
            return Flow(self.batch, self.marks, self.children)
        if self.causes is None:
            return Flow(self.batch, inputs.marks)
        return Flow(self.batch, inputs.marks[np.asarray(self.causes, dtype=np.int64)])


@dataclass(slots=True)
class Emitted:
    """An output in the making, row by row; as lists, since a tuple for each would keep the garbage collector busy.

    ``outdated`` are the numbers of rows that are changes of a versioned table which are not the newest of their key.
    """

    causes: list[int] = field(default_factory=list)
    keys: list[Any] = field(default_factory=list)
    values: list[Any] = field(default_factory=list)
    times: list[int] = field(default_factory=list)
    olds: list[Any] = field(default_factory=list)
    outdated: list[int] = field(default_factory=list)
    dropped: int = 0

    def add(self, cause: int, key: Any, value: Any, time_ms: int, old: Any = None) -> None:
        """One row, caused by turn ``cause``."""
        self.causes.append(cause)
        self.keys.append(key)
        self.values.append(value)
        self.times.append(time_ms)
        self.olds.append(old)

    def extend(
        self, causes: Sequence[int], key: Any, values: list[Any], times: list[int], olds: list[Any] | None
    ) -> None:
        """Rows of one key."""
        self.causes.extend(causes)
        self.keys.extend([key] * len(causes))
        self.values.extend(values)
        self.times.extend(times)
        self.olds.extend(olds if olds is not None else [None] * len(causes))

    def output(self, layout: Layout) -> Output:
        """The finished output."""
        olds = self.olds if layout.table else None
        batch = Batch.of_lists(layout, self.keys, self.values, self.times, olds=olds, latest=self._latest())
        return Output(batch, self.causes, self.dropped)

    def _latest(self) -> list[bool] | None:
        if not self.outdated:
            return None
        latest = [True] * len(self.causes)
        for row in self.outdated:
            latest[row] = False
        return latest


def interleave(flows: Sequence[Flow]) -> tuple[Marks, Sequence[int], Sequence[int]]:
    """The order in which rows of several flows are taken: their marks, and side and row of each turn."""
    filled = [side for side, flow in enumerate(flows) if len(flow.marks)] or [0]
    if len(filled) == 1:
        marks = flows[filled[0]].marks
        return marks, filled * len(marks), range(len(marks))
    marks = np.concatenate([flow.marks for flow in flows])
    sides = np.concatenate([np.full(len(flow.marks), side) for side, flow in enumerate(flows)])
    rows = np.concatenate([np.arange(len(flow.marks)) for flow in flows])
    order = np.lexsort(marks.T[::-1])
    return marks[order], sides[order].tolist(), rows[order].tolist()
