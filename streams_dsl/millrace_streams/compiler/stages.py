"""Stages: a plan's task cut at repartitions, for runners with several buckets.

*Prologues* run where a source is read, before rows enter the JVM; *stages* run per bucket. Each lists the rows that it
sends to later stages. A table that a later stage looks up and an earlier one needs too is stored twice: its changes are
sent on and stored again. The copy of a windowed table also gets the changes that the table does not send.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

import pyarrow as pa

from millrace_streams.compiler.check import history_of
from millrace_streams.compiler.plan import Edge, Plan, SourceReader, is_output
from millrace_streams.compiler.repartitions import with_parents
from millrace_streams.compiler.stage_numbers import StageNumbers, prologues
from millrace_streams.compiler.tables import looked_up
from millrace_streams.graph import (
    AggregateNode,
    AnswerNode,
    DeltaSinkNode,
    FoldNode,
    MaterializeNode,
    Node,
    ProcessNode,
    RepartitionNode,
    SinkNode,
    SubscribeNode,
    TableNode,
    UnsentNode,
    WindowCopyNode,
)
from millrace_streams.layout import ASKING, KEY, WINDOW_COLUMNS, Layout
from millrace_streams.steps import Operator
from millrace_streams.windows import UnlimitedWindows, length_of

Way: TypeAlias = Literal["partition", "key", "all"]
"""Destination bucket of rows: that of their partition, that of their key, or all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Send:
    """Rows of one node that go to a later stage.

    The rows of ``node`` go to ``stage``, and ``way`` selects the bucket there. If ``way`` is ``key``, the values of the
    columns ``key`` determine the bucket. ``pickled`` rows are messages of a foreign-key join, which have no columns.
    """

    node: str
    layout: Layout
    stage: int
    way: Way
    key: tuple[pa.Field, ...]
    pickled: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """Operators that run per bucket, between two repartitions.

    A prologue is a stage with ``number`` -1, which runs where the source of ``head`` is read. ``receives`` are the
    nodes whose rows come in.
    """

    number: int
    operators: tuple[Operator, ...]
    sends: tuple[Send, ...] = ()
    receives: tuple[Send, ...] = ()
    head: str | None = None

    @property
    def outputs(self) -> tuple[SinkNode | RepartitionNode, ...]:
        """Nodes whose rows leave the topology."""
        return tuple(operator.node for operator in self.operators if is_output(operator.node))

    @property
    def incremental(self) -> bool:
        """True if a bucket's rows come from one source and already in processing order."""
        return [send.way for send in self.receives] == ["partition"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Stages:
    """A plan cut into stages."""

    plan: Plan
    prologues: tuple[Stage, ...]
    stages: tuple[Stage, ...]
    forks: Mapping[Edge, tuple[int, int, int]]


def stages_of(plan: Plan) -> Stages:
    """Cut a plan's task into stages. Raises ``UnsupportedTopologyError`` as ``StageNumbers.of`` does."""
    numbers = StageNumbers.of(plan)
    early = prologues(plan, numbers, {each.node.name: stateless(each) for each in plan.task})
    cutter = _Cutter(plan, numbers, early)
    stages = cutter.stages()
    return Stages(
        plan=plan,
        prologues=tuple(cutter.prologue(reader) for reader in plan.readers),
        stages=stages,
        forks=cutter.forks,
    )


def stateless(operator: Operator) -> bool:
    """Return whether an operator can run on any part of a partition."""
    node = operator.node
    if isinstance(node, DeltaSinkNode):
        # Only the newest row of each key leaves a table, so all of them must be in one place.
        return not operator.given.table
    return not (node.stores or looked_up(node) or isinstance(node, ProcessNode | UnsentNode))


class _Cutter:
    """Assignment of operators to stages, with the rows that are sent."""

    def __init__(self, plan: Plan, numbers: StageNumbers, early: Mapping[str, frozenset[str]]) -> None:
        self.forks = dict(plan.forks)
        self._plan = plan
        self._numbers = numbers
        self._early = early
        self._at_reader = {name: head for head, names in early.items() for name in (head, *names)}
        self._notes = _notes(plan)
        self._heads = {reader.head: reader for reader in plan.readers}
        self._layouts = dict(plan.layouts)
        self._nodes = {each.name: each for each in plan.topology.nodes}
        self._copied = {
            parent
            for operator in plan.task
            for parent in looked_up(operator.node)
            if self._is_elsewhere(parent, numbers.number.get(operator.node.name)) and self._has_windows(parent)
        }
        self._operators = dict(self._sorted())
        self._received = {number: tuple(self._receives(number)) for number in self._operators}

    def stages(self) -> tuple[Stage, ...]:
        """Return the stages with operators, which run per bucket."""
        return tuple(
            Stage(
                number=number,
                operators=tuple(operators),
                sends=tuple(self._sends(number, [operator.node.name for operator in operators])),
                receives=self._received[number],
            )
            for number, operators in sorted(self._operators.items())
            if operators
        )

    def prologue(self, reader: SourceReader) -> Stage:
        """Return the prologue of a source: the operators that run at its reading, and the destinations of its
        records.
        """
        head = reader.head
        own = self._early.get(head, frozenset())
        operators = tuple(operator for operator in self._plan.task if operator.node.name in own)
        sends = list(self._sends(-1, [head, *(operator.node.name for operator in operators)]))
        return Stage(number=-1, operators=operators, sends=tuple(sends), head=head)

    def _sorted(self) -> Iterator[tuple[int, list[Operator]]]:
        everywhere = [operator for operator in self._plan.task if operator.node.name in self._numbers.everywhere]
        for number in range(max(self._numbers.number.values(), default=0) + 1):
            operators: list[Operator] = []
            for operator in self._plan.task:
                name = operator.node.name
                if name not in self._at_reader and self._numbers.number.get(name) == number:
                    operators.extend(self._with_copies(operator, number))
                    if name in self._copied:
                        operators.append(self._unsent(name))
            used = {parent for operator in operators for parent in operator.node.parents}
            for each in reversed(everywhere):
                if each.node.name in used:
                    used.update(each.node.parents)
            yield number, [*(each for each in everywhere if each.node.name in used), *operators]

    def _with_copies(self, operator: Operator, number: int) -> Iterator[Operator]:
        """Yield the operator, after copies of the tables that it looks up and that another stage stores."""
        node = operator.node
        parents, reads = list(node.parents), list(operator.reads)
        for place, parent in enumerate(node.parents):
            if parent not in looked_up(node) or not self._is_elsewhere(parent, number):
                continue
            copy = self._copy(node, parent)
            edge = (parent, node.name, place)
            if edge in self.forks:
                self.forks[parent, copy.name, 0] = self.forks[edge]
            layout, inputs = self._plan.layouts[parent], len(copy.parents)
            yield Operator(
                node=copy,
                inputs=(layout,) * inputs,
                result=layout,
                reads=(None,) * inputs,
                versioned=(False,) * inputs,
            )
            parents[place], reads[place] = copy.name, copy.store
        yield replace(operator, node=with_parents(node, tuple(parents)), reads=tuple(reads))

    def _copy(self, node: Node, parent: str) -> MaterializeNode | WindowCopyNode:
        table = self._nodes[parent]
        # Named after the copied store and the join, because both may have the user's names.
        assert isinstance(table, TableNode)
        name, store = f"{parent}-for-{node.name}", f"{table.store}-for-{node.name}"
        if parent in self._copied:
            return WindowCopyNode(
                name=name,
                parents=(parent, _unsent_of(parent)),
                store=store,
                sends_old=table.sends_old,
                on_close=isinstance(table, FoldNode) and table.on_close,
            )
        return MaterializeNode(
            name=name,
            parents=(parent,),
            store=store,
            sends_old=table.sends_old,
            history_ms=history_of(parent, self._nodes),
        )

    def _is_elsewhere(self, parent: str, number: int | None) -> bool:
        """Return whether a table is stored on another stage than this one."""
        return number is not None and self._numbers.number.get(parent, number) != number

    def _has_windows(self, name: str) -> bool:
        """Return whether a table has windows that expire; those without an end never close either."""
        node = self._nodes[name]
        window = node.window if isinstance(node, AggregateNode | FoldNode) else None
        return window is not None and not isinstance(window, UnlimitedWindows)

    def _unsent(self, name: str) -> Operator:
        """Return the operator with the changes of a windowed table that only its copies get."""
        table, layout = self._nodes[name], self._plan.layouts[name]
        assert isinstance(table, AggregateNode | FoldNode)
        forks = [fork for (parent, _, _), (fork, _, _) in self._plan.forks.items() if parent == name]
        node = UnsentNode(
            name=_unsent_of(name),
            parents=(name,),
            length_ms=length_of(table.window),
            fork=forks[0] if forks else None,
        )
        self._layouts[node.name] = layout
        return Operator(node=node, inputs=(layout,), result=layout, reads=(table.store,), versioned=(False,))

    def _receives(self, number: int) -> Iterator[Send]:
        """Yield the rows that a stage receives."""
        operators = self._operators[number]
        own = {operator.node.name for operator in operators}
        wanted = [name for operator in operators for name in operator.node.parents if name not in own]
        for name in dict.fromkeys([*wanted, *self._ticking(operators)]):
            way: Way = "partition" if number == 0 else "key"
            if name in self._heads and self._heads[name].source.broadcast:
                way = "all"
            layout = self._layouts[name]
            key = self._notes.get(name) or tuple(layout.schema.field(column) for column in layout.key)
            yield Send(node=name, layout=layout, stage=number, way=way, key=key, pickled=name in self._notes)

    def _ticking(self, operators: Iterable[Operator]) -> Iterator[str]:
        """Yield the sources and repartitions whose records advance the stream time of processors, whether or not they
        reach them.
        """
        numbers, moves = self._plan.subtopologies, self._plan.advancing
        processors = [operator.node.name for operator in operators if isinstance(operator.node, ProcessNode)]
        ticked = {numbers[name] for name in processors}
        for head, reader in self._heads.items():
            if numbers[head] in ticked and not reader.source.broadcast:
                yield head
        for name in processors:
            yield from moves[name]

    def _sends(self, number: int, names: Iterable[str]) -> Iterator[Send]:
        """Yield the rows of these nodes, made on one stage, that later stages receive."""
        made = set(names)
        for later, received in self._received.items():
            if later > number:
                yield from (send for send in received if send.node in made)


def _unsent_of(table: str) -> str:
    return f"{table}-unsent"


def _notes(plan: Plan) -> dict[str, tuple[pa.Field, ...]]:
    """Return the nodes that emit messages of a foreign-key join, before and after the repartition, with their routing
    key.

    A subscription goes to the right row of its foreign key, and a response back to the left row.
    """
    found: dict[str, tuple[pa.Field, ...]] = {}
    for operator in plan.task:
        node, schema = operator.node, operator.result.schema
        match node:
            case SubscribeNode():
                found[node.name] = (schema.field(KEY),)
            case AnswerNode():
                asking = [field for field in schema if field.name.startswith(ASKING)]
                names = [field.name.removeprefix(ASKING) for field in asking]
                found[node.name] = tuple(
                    field for field, name in zip(asking, names, strict=True) if name not in WINDOW_COLUMNS
                )
            case RepartitionNode() if node.parents[0] in found:
                found[node.name] = found[node.parents[0]]
    return found
