"""Record order within a batch, as in Kafka Streams' depth-first processing.

A task runs a whole batch through one operator after the other. The results must equal those of sending each record
through all operators before the next one. Only the order can differ, and only where branches meet again in an operator
with several inputs. So every row on an edge has *marks*, a row of whole numbers that are compared from the left:

* ``ROOT``, the number of the input record;
* ``REPARTITIONS`` (the number of repartitions), ``TURN`` and ``CHANNEL`` (the number of the last one), which only a
  repartition changes. Rows through a topic come after all direct rows of the same record. Of several topics, one record
  of each is taken in turn;
* ``RELEASED``, which has no part in the order. A row that waited in a store until time had advanced, such as a final
  result, has a number among those that its input record released. Rows made of it inherit the number. Others have 0;
* one for each fork whose branches meet again: the row's place at the fork, and its branch.

A step does not know marks. It names the causing input row of each output row, which inherits its marks.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
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
from millrace_streams.steps.results import MisfitError

ROOT: Final = 0
REPARTITIONS: Final = 1
TURN: Final = 2
CHANNEL: Final = 3
RELEASED: Final = 4
FIXED: Final = 5
"""Number of marks that every row has; those of forks follow."""
LAST: Final = 2**62
"""A mark after all others."""

Marks = npt.NDArray[np.int64]
"""One row of marks for each row of a batch."""


class Origin(NamedTuple):
    """Position and headers of an input record."""

    topic: str
    partition: int
    offset: int
    headers: Headers = ()


class LeftOut(NamedTuple):
    """A released row that was left out of a batch.

    ``root`` is the mark of the record that released it, and ``number`` its number among those (``RELEASED``).
    """

    root: int
    number: int
    key: Any
    value: Any
    time_ms: int


@dataclass(slots=True)
class Releases:
    """Released rows of a run, with their numbers.

    ``aside`` identifies the rows to leave out by root mark and number. ``left_out`` collects them.
    """

    aside: Collection[tuple[int, int]] = ()
    left_out: list[LeftOut] = field(default_factory=list)
    _newest: dict[int, int] = field(default_factory=dict)

    def arrived(self, marks: Marks) -> None:
        """Note the numbers of rows that an earlier stage released, so that new ones differ from them."""
        rows = np.flatnonzero(marks[:, RELEASED])
        for root, number in marks[rows][:, [ROOT, RELEASED]].tolist():
            self._newest[root] = max(self._newest.get(root, 0), number)

    def number(self, marks: Marks, rows: Sequence[int] | Rows) -> None:
        """Give released rows their numbers. The root marks of these rows must ascend."""
        roots, counts = np.unique(marks[rows, ROOT], return_counts=True)
        before = np.asarray([self._newest.get(root, 0) for root in roots.tolist()], dtype=np.int64)
        marks[rows, RELEASED] = np.arange(1, len(rows) + 1) - np.repeat(np.cumsum(counts) - counts - before, counts)
        self._newest.update(zip(roots.tolist(), (before + counts).tolist(), strict=True))

    def kept(self, batch: Batch, marks: Marks, values: Sequence[Any] | None = None) -> Rows:
        """Return the rows that are not left out. ``values`` are those of the rows left out, if not the batch's."""
        if not self.aside:
            return np.arange(batch.height)
        rows = list(map(tuple, marks[:, [ROOT, RELEASED]].tolist()))
        for row, (root, number) in enumerate(rows):
            if (root, number) in self.aside:
                value = (batch.values if values is None else values)[row]
                self.left_out.append(LeftOut(root, number, batch.keys[row], value, batch.times[row]))
        return np.asarray([row for row, found in enumerate(rows) if found not in self.aside], dtype=np.int64)


@dataclass(frozen=True, slots=True)
class Flow:
    """A batch with the marks of its rows.

    ``children`` names the child of a processor for each row; None means all children.
    """

    batch: Batch
    marks: Marks
    children: Sequence[str | None] | None = None

    def after_fork(self, fork: int, way: int, ways: int) -> Flow:
        """Return the flow marked as having taken branch ``way`` of a fork.

        Places at the fork are counted per input record, because branches may run on different stages, each of which
        sees other records as well.
        """
        marks = self.marks.copy()
        roots = marks[:, ROOT]
        places = np.arange(len(marks)) - np.searchsorted(roots, roots, side="left")
        marks[:, FIXED + fork] = places * ways + way
        return Flow(self.batch, marks, self.children)

    def before_branches(self, forks: Sequence[tuple[int, int]]) -> Flow:
        """Return the flow marked as coming before all branches of forks, which are given with their numbers of ways."""
        if not forks:
            return self
        marks = self.marks.copy()
        for fork, ways in forks:
            marks[:, FIXED + fork] -= marks[:, FIXED + fork] % ways
        return Flow(self.batch, marks, self.children)

    def for_child(self, child: str) -> Flow:
        """Return the rows for a child of a processor."""
        if self.children is None:
            return self
        rows = np.asarray([row for row, name in enumerate(self.children) if name in (None, child)], dtype=np.int64)
        return Flow(self.batch.take(rows), self.marks[rows])

    def failure(self, node: str, text: str, row: int, origin: Callable[[int], Origin]) -> UserFunctionError:
        """Return the error of a node for a row; ``origin`` returns the position of an input record by its root mark."""
        return _failure_at(node, text, self.marks[row], origin, self.batch.times[row])


@dataclass(frozen=True, slots=True)
class Ticks:
    """Course of a task's stream time during a batch.

    ``times`` are the timestamps of the task's input records, and ``marks`` are their marks.
    """

    times: list[int]
    marks: Marks


@dataclass(frozen=True, slots=True, kw_only=True)
class Inputs:
    """Input of a step for a batch.

    The input has one batch per parent and the processing order of their rows. ``sides`` and ``rows`` name the parent
    and the row of each turn. With one parent, turn and row are equal. After the batches of the parents come the unsent
    changes (``State.unsent``) of tables that the step looks up. ``unsent`` has the parents to which these changes
    belong. ``apart`` tells that no released row depends on another one, because no state came between.
    """

    batches: tuple[Batch, ...]
    marks: Marks
    sides: Rows
    rows: Rows
    origin: Callable[[int], Origin]
    ticks: Ticks | None = None
    wall_clock_ms: int = 0
    task: TaskId = FIRST_TASK
    application_id: str = ""
    unsent: tuple[int, ...] = ()
    releases: Releases = field(default_factory=Releases)
    apart: bool = False

    @property
    def batch(self) -> Batch:
        """The batch of the only parent."""
        [batch] = self.batches
        return batch

    def turns(self) -> Iterator[tuple[int, int, int]]:
        """Yield turn, side and row, in order."""
        return zip(range(len(self.rows)), self.sides.tolist(), self.rows.tolist(), strict=True)

    def by_turn(self) -> tuple[list[Any], list[Any], list[int]]:
        """Return keys, values and times of all parents' rows, in order."""
        keys, values, times = ([getattr(batch, name) for batch in self.batches] for name in ("keys", "values", "times"))
        return self._in_order(keys), self._in_order(values), self._in_order(times)

    def olds_by_turn(self) -> list[Any]:
        """Return the old values of all parents' changes, in order."""
        return self._in_order([batch.olds for batch in self.batches])

    def _in_order(self, lists: list[list[Any]]) -> list[Any]:
        if len(lists) == 1:
            return lists[0]
        begins = np.cumsum([0, *(len(each) for each in lists)])
        places = begins[self.sides] + self.rows
        whole = list(chain.from_iterable(lists))
        return list(map(whole.__getitem__, places.tolist()))

    def origin_of(self, turn: int) -> Origin:
        """Return the origin of a turn's input record."""
        return self.origin(int(self.marks[turn, ROOT]))

    def call(
        self, node: str, function: PythonFunction, turns: Sequence[int] | Rows, *columns: Sequence[Any]
    ) -> list[Any]:
        """Call a user's function for each record; ``columns`` are the keys and the values, by record.

        Raises ``UserFunctionError`` with the node and the record's position; ``turns`` has the turns of the records.
        """
        results: list[Any] = []
        given = columns if function.takes_key else columns[1:]
        try:
            with self.blaming(node, function) as place:
                try:
                    # The list holds everything returned so far, so the failing record is known.
                    results.extend(map(function.call, *given))
                except Exception:
                    place.turn = int(turns[len(results)])
                    raise
        except UserFunctionError as error:
            if self.apart and error.released is not None:
                rest = zip(turns[len(results) + 1 :], *(column[len(results) + 1 :] for column in given), strict=True)
                error.alike = list(self._failures(node, function, rest, error.released))
            raise
        return results

    def _failures(
        self, node: str, function: PythonFunction, rows: Iterable[tuple[Any, ...]], released: tuple[int, int]
    ) -> Iterator[UserFunctionError]:
        """Yield the errors of other results that the same record released, of rows given as turn and arguments."""
        for turn, *arguments in rows:
            if self.marks[turn, ROOT] == released[0] and self.marks[turn, RELEASED]:
                try:
                    with self.blaming(node, function) as place:
                        place.turn = int(turn)
                        function.call(*arguments)
                except UserFunctionError as error:
                    yield error

    def call_rows(self, node: str, function: PythonFunction) -> list[Any]:
        """Call a user's function for all rows of the only parent."""
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
        """Call a user's function for rows with a value, and return None for others. ``turns`` defaults to all, in
        order.
        """
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
        """Convert errors of a user's function to ``UserFunctionError`` with the node's name and the record's position.

        The caller keeps ``place.turn`` at the current record.
        """
        place = Place()
        try:
            yield place
        except (UserFunctionError, TopologyError):
            raise
        except MisfitError as error:
            raise self.failure(node, str(error), place.turn) from error.__cause__
        except Exception as error:
            text = f"{what} raised {type(error).__name__}: {error}"
            raise self.failure(node, text, place.turn) from error

    def failure(self, node: str, text: str, turn: int | None) -> UserFunctionError:
        """Return the error for the record of a turn; without such a turn, an error without a record."""
        if turn is None or turn >= len(self.rows):
            return UserFunctionError(f"{node}: {text} (no record)", node=node)
        time_ms = self.batches[self.sides[turn]].times[self.rows[turn]]
        return _failure_at(node, text, self.marks[turn], self.origin, time_ms)

    def release(
        self, batch: Batch, marks: Marks, rows: Sequence[int] | Rows, values: Sequence[Any] | None = None
    ) -> tuple[Inputs, Rows]:
        """Return a step's rows as the input of its remaining work, and which of them are not left out.

        Those of ``rows`` were released and get numbers in ``marks``. ``values`` are as in ``Releases.kept``.
        """
        self.releases.number(marks, rows)
        kept = self.releases.kept(batch, marks, values)
        if len(kept) < batch.height:
            batch, marks = batch.take(kept), marks[kept]
        sides = np.zeros(len(kept), dtype=np.int64)
        return replace(self, batches=(batch,), marks=marks, sides=sides, rows=np.arange(len(kept))), kept

    def released(self, output: Output, rows: Sequence[int] | Rows) -> Output:
        """Return a step's output, of which ``rows`` were released, with their numbers and without those left out."""
        rest, _ = self.release(output.batch, self.marks[np.asarray(output.causes, dtype=np.int64)], rows)
        return Output(rest.batch, dropped=output.dropped, marks=rest.marks)


def _failure_at(node: str, text: str, marks: Marks, origin: Callable[[int], Origin], time_ms: int) -> UserFunctionError:
    """Return the error of a node for a row, given by its marks."""
    # A reader's rows have only the root mark, because nothing is released before the task.
    root, number = int(marks[ROOT]), int(marks[RELEASED]) if len(marks) > RELEASED else 0
    released = (root, number) if number else None
    if root < 0:  # a result of a wall-clock punctuation
        return UserFunctionError(f"{node}: {text} (no record)", node=node, released=released)
    topic, partition, offset, _ = origin(root)
    where = f"record of topic {topic}, partition {partition}, offset {offset}, timestamp {time_ms}"
    return UserFunctionError(
        f"{node}: {text} ({where})", node=node, topic=topic, partition=partition, offset=offset, released=released
    )


@dataclass(slots=True)
class Place:
    """The current turn."""

    turn: int = 0


@dataclass(frozen=True, slots=True)
class Output:
    """Output of a step for a batch.

    ``causes`` has the turn that caused each row of the batch. None means that the rows correspond to the input's rows
    one by one. ``dropped`` is Kafka's ``dropped-records``. ``marks`` are set by the few steps whose rows have no cause,
    ``children`` by processors.
    """

    batch: Batch
    causes: Rows | list[int] | None = None
    dropped: int = 0
    marks: Marks | None = None
    children: Sequence[str | None] | None = None

    def turn_of(self, row: int) -> int | None:
        """Return the causing turn of a row, if there is one."""
        if self.marks is not None:
            return None
        return row if self.causes is None else int(self.causes[row])

    def last_of_keys(self) -> Output:
        """Return only the last row of each key; rows have causes."""
        rows = np.sort(np.fromiter({key: row for row, key in enumerate(self.batch.keys)}.values(), dtype=np.int64))
        return replace(self, batch=self.batch.take(rows), causes=np.asarray(self.causes, dtype=np.int64)[rows])

    def in_order(self) -> Output:
        """Return the rows sorted by cause; rows of one cause keep their order."""
        causes = np.asarray(self.causes, dtype=np.int64)
        order = np.argsort(causes, kind="stable")
        return Output(self.batch.take(order), causes[order], self.dropped)

    def flow(self, inputs: Inputs) -> Flow:
        """Return the batch with the inherited marks."""
        if self.marks is not None:
            return Flow(self.batch, self.marks, self.children)
        if self.causes is None:
            return Flow(self.batch, inputs.marks)
        return Flow(self.batch, inputs.marks[np.asarray(self.causes, dtype=np.int64)])


@dataclass(slots=True)
class Emitted:
    """Output under construction, row by row. Lists are used, because a tuple per row would burden the garbage
    collector.

    ``outdated`` are the numbers of rows that are changes of a versioned table, but not the newest of their key.
    """

    causes: list[int] = field(default_factory=list)
    keys: list[Any] = field(default_factory=list)
    values: list[Any] = field(default_factory=list)
    times: list[int] = field(default_factory=list)
    olds: list[Any] = field(default_factory=list)
    outdated: list[int] = field(default_factory=list)
    dropped: int = 0

    def add(self, cause: int, key: Any, value: Any, time_ms: int, old: Any = None) -> None:
        """Add one row, caused by turn ``cause``."""
        self.causes.append(cause)
        self.keys.append(key)
        self.values.append(value)
        self.times.append(time_ms)
        self.olds.append(old)

    def output(self, layout: Layout) -> Output:
        """Return the finished output."""
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


def interleave(flows: Sequence[Flow]) -> tuple[Marks, Rows, Rows]:
    """Return the processing order of rows of several flows: their marks, and side and row of each turn."""
    filled = [side for side, flow in enumerate(flows) if len(flow.marks)] or [0]
    if len(filled) == 1:
        marks = flows[filled[0]].marks
        return marks, np.full(len(marks), filled[0]), np.arange(len(marks))
    marks = np.concatenate([flow.marks for flow in flows])
    sides = np.concatenate([np.full(len(flow.marks), side) for side, flow in enumerate(flows)])
    rows = np.concatenate([np.arange(len(flow.marks)) for flow in flows])
    order = in_order(marks)
    return marks[order], sides[order], rows[order]


def in_order(marks: Marks) -> Rows:
    """Return the rows of marks in processing order. Most marks are equal in all rows, and are not compared."""
    compared = (mark for place, mark in enumerate(marks.T) if place != RELEASED)
    differing = [mark for mark in compared if len(mark) and (mark != mark[0]).any()]
    return np.lexsort(differing[::-1]) if differing else np.arange(len(marks))
