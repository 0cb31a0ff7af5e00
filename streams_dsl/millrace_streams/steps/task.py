"""Task: all operators of a plan or stage over one bucket.

The same class runs in Spark's workers, in a batch job and in the test driver. They differ in the source of batches, the
destination of outputs, and the storage between batches.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np

from millrace_streams.graph import (
    ChildNode,
    DeltaSinkNode,
    MaterializeNode,
    Node,
    ProcessNode,
    RepartitionNode,
    StreamTableJoinNode,
    TableFilterNode,
    TableMapNode,
    TableSelectNode,
    TableTableJoinNode,
    TopicSinkNode,
    WindowCopyNode,
)
from millrace_streams.processors import TaskId
from millrace_streams.steps.aggregate import AggregateStep
from millrace_streams.steps.batch import NO_ROWS, Rows, concatenate, empty_batch
from millrace_streams.steps.expiry import Expiry
from millrace_streams.steps.flow import (
    CHANNEL,
    FIXED,
    RELEASED,
    ROOT,
    Flow,
    Inputs,
    LeftOut,
    Marks,
    Origin,
    Releases,
    Ticks,
    interleave,
)
from millrace_streams.steps.fold import FoldStep
from millrace_streams.steps.operator import AnyStore, AnyStoreSpec, Lookup, Operator, State, Step
from millrace_streams.steps.registry import make_step
from millrace_streams.steps.store import StateDelta, Store, StoreSpec
from millrace_streams.steps.table_groups import TableFoldStep
from millrace_streams.steps.topic_names import with_topics
from millrace_streams.stores import ExpiringStore, ObjectStore, new_store
from millrace_streams.stores.base import Change

Forks = Mapping[tuple[str, str, int], tuple[int, int, int]]


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskResult:
    """Result of a task for a batch.

    ``outputs`` are by sink and visible repartition topic, and ``deltas`` and ``changes`` are by store. ``dropped``
    counts the dropped records by node. ``left_out`` are the released rows that were left out.
    """

    outputs: Mapping[str, Flow]
    deltas: Mapping[str, StateDelta]
    changes: Mapping[str, Change]
    dropped: Mapping[str, int]
    left_out: Sequence[LeftOut] = ()


@dataclass(frozen=True)
class Steps:
    """Steps of a task, by node name.

    The steps are created once for all batches and buckets of the task.
    """

    operators: Sequence[Operator]
    forks: Forks
    by_node: Mapping[str, Step]
    entries: Mapping[str, frozenset[str]]
    subtopologies: Mapping[str, int]

    @classmethod
    def of(
        cls,
        operators: Sequence[Operator],
        forks: Forks,
        repartition_numbers: Mapping[str, int],
        subtopologies: Mapping[str, int],
        received: Iterable[str] = (),
    ) -> Steps:
        """Create the steps of these operators, parents first: all of a plan's, or those of one stage.

        ``repartition_numbers`` numbers the plan's repartitions; ``subtopologies`` has the number of each node's
        sub-topology. ``received`` are the nodes whose rows come in from outside.
        """
        by_node: dict[str, Step] = {}
        for operator in operators:
            if not isinstance(operator.node, TopicSinkNode | DeltaSinkNode):
                by_node[operator.node.name] = make_step(
                    operator, repartition=repartition_numbers.get(operator.node.name, 0)
                )
        return cls(
            operators,
            forks,
            by_node,
            _entries([operator.node for operator in operators], subtopologies, received),
            subtopologies,
        )

    @cached_property
    def one_by_one(self) -> bool:
        """True if several steps share a store, so that records must be processed one by one."""
        names = [spec.name for step in self.by_node.values() for spec in step.stores]
        return len(names) > len(set(names))

    @cached_property
    def fork_count(self) -> int:
        """Number of forks in the marks, at least 1, because rows of punctuations need a mark that puts them last."""
        return max(1, len({fork for fork, _, _ in self.forks.values()}))

    @cached_property
    def branching(self) -> Mapping[tuple[str, int], Sequence[tuple[int, int]]]:
        """Forks of the tables that joins of streams and processors look up, with their numbers of ways, by input.

        A table stores a change before it forwards it. So a join finds it also for a record that comes from the table on
        an earlier branch. A table without a store in Kafka Streams is computed from those above, and so are its forks.
        """
        nodes = {operator.node.name: operator.node for operator in self.operators}
        ways = {parent: (fork, ways) for (parent, _, _), (fork, _, ways) in self.forks.items()}
        found = {}
        for node in nodes.values():
            if isinstance(node, StreamTableJoinNode | ProcessNode):
                for place, parent in enumerate(node.parents[1:], start=1):
                    tables = [parent]
                    for table in tables:
                        if table in nodes and _is_computed(nodes[table]):
                            tables += [each for each in nodes[table].parents if each not in tables]
                    found[node.name, place] = [ways[table] for table in tables if table in ways]
        return found

    @cached_property
    def looked_up(self) -> frozenset[str]:
        """Names of the stores whose rows other operators look up."""
        return frozenset(name for operator in self.operators for name in operator.reads if name is not None)

    def stores(self) -> list[AnyStoreSpec]:
        """Return the stores of the steps; a shared store is listed once."""
        specs = {spec.name: spec for step in self.by_node.values() for spec in step.stores}
        return list(specs.values())

    def lookups(self) -> dict[str, Lookup]:
        """Return the look-ups in stores of named aggregates."""
        found: dict[str, Lookup] = {}
        for step in self.by_node.values():
            if isinstance(step, AggregateStep):
                found[step.node.store] = step.lookup
            elif isinstance(step, FoldStep | TableFoldStep) and step.named is not None and not step.node.bare:
                found[step.node.store] = step.named.lookup
        return found


@dataclass(slots=True)
class Task:
    """The steps with the stores of bucket ``partition``, of the application ``application_id``."""

    steps: Steps
    stores: dict[str, AnyStore] = field(default_factory=dict)
    partition: int = 0
    application_id: str = ""
    state: State = field(init=False)

    def __post_init__(self) -> None:
        """Create empty stores for those that were not given."""
        for spec in self.steps.stores():
            if spec.name not in self.stores:
                self.stores[spec.name] = Store(spec) if isinstance(spec, StoreSpec) else new_store(spec)
        for name in self.steps.looked_up:
            store = self.stores[name]
            if isinstance(store, ExpiringStore):
                store.looked_up = True
        self.state = State(self.stores, lookups=self.steps.lookups())

    def run(
        self,
        arrivals: Mapping[str, Flow],
        origin: Callable[[int], Origin],
        *,
        wall_clock_ms: int = 0,
        aside: Collection[tuple[int, int]] = (),
    ) -> TaskResult:
        """Run a batch, in record order, through all operators, and apply its changes to the stores.

        ``arrivals`` are the input batches by node; ``origin`` returns a record's position by its root mark. Raises
        ``UserFunctionError`` if a user's function fails; the stores must not be used afterwards. Processors that share
        a store see each other's changes per record, so records are then run one by one. Released rows in ``aside``, by
        root mark and number, are left out: they leave their stores, and have no other effect.
        """
        releases = Releases(aside)
        arrivals = {name: _released_before(flow, releases) for name, flow in arrivals.items()}
        batches = [arrivals]
        if self.steps.one_by_one:
            roots = sorted({int(root) for flow in arrivals.values() for root in flow.marks[:, ROOT]})
            batches = [{name: _of_root(flow, root) for name, flow in arrivals.items()} for root in roots] or batches
        with _collecting_later():
            results = [self._run(batch, origin, wall_clock_ms, releases) for batch in batches]
            result = results[0] if len(results) == 1 else merged(results, self.stores)
        return replace(result, left_out=releases.left_out)

    def _run(
        self, arrivals: Mapping[str, Flow], origin: Callable[[int], Origin], wall_clock_ms: int, releases: Releases
    ) -> TaskResult:
        flowing = dict(arrivals)
        outputs: dict[str, Flow] = {}
        dropped: dict[str, int] = {}
        dependent: set[str] = set()
        expiries = ((name, Expiry.of(self.stores[name])) for name in self.steps.looked_up)
        self.state.expiries = {name: expiry for name, expiry in expiries if expiry is not None}
        self.state.unsent = {}
        for operator in self.steps.operators:
            node = operator.node
            flows = [self._flow(flowing, operator, place) for place in range(len(node.parents))]
            if isinstance(node, TopicSinkNode | DeltaSinkNode):
                [flow] = flows
                if isinstance(node, TopicSinkNode) and node.extractor is not None:
                    flow = with_topics(node, flow, origin)
                outputs[node.name] = flow
                continue
            unsent = self._unsent(operator)
            flows += [self.state.unsent[store] for store in unsent.values()]
            marks, sides, rows = interleave(flows)
            step = self.steps.by_node[node.name]
            has_state = bool(step.stores) or any(operator.reads)
            inputs = Inputs(
                batches=tuple(flow.batch for flow in flows),
                marks=marks,
                sides=sides,
                rows=rows,
                origin=origin,
                ticks=self._ticks(node, flowing),
                wall_clock_ms=wall_clock_ms,
                task=TaskId(self.steps.subtopologies.get(node.name, 0), self.partition),
                application_id=self.application_id,
                unsent=tuple(unsent),
                releases=releases,
                apart=dependent.isdisjoint(node.parents) and not (has_state and marks[:, RELEASED].any()),
            )
            if not inputs.apart:
                dependent.add(node.name)
            output = step.run(inputs, self.state)
            flowing[node.name] = output.flow(inputs)
            dropped[node.name] = output.dropped
            if isinstance(node, RepartitionNode) and node.visible:
                outputs[node.name] = flowing[node.name]
        return TaskResult(outputs=outputs, deltas=self._take_over(), changes=self._commit(), dropped=dropped)

    def _flow(self, flowing: Mapping[str, Flow], operator: Operator, place: int) -> Flow:
        parent = operator.node.parents[place]
        if parent in flowing:
            flow = flowing[parent]
        else:
            flow = Flow(empty_batch(operator.inputs[place]), root_marks(NO_ROWS, self.steps))
        fork = self.steps.forks.get((parent, operator.node.name, place))
        flow = flow if fork is None else flow.after_fork(*fork)
        flow = flow.before_branches(self.steps.branching.get((operator.node.name, place), ()))
        return flow.for_child(operator.node.child) if isinstance(operator.node, ChildNode) else flow

    def _unsent(self, operator: Operator) -> dict[int, str]:
        """Return the parents of a join whose tables have unsent changes, with their stores."""
        if not isinstance(operator.node, StreamTableJoinNode | TableTableJoinNode):
            return {}
        reads = operator.reads
        found = (
            (place, store) for place, store in enumerate(reads) if store is not None and store not in reads[:place]
        )
        return {place: store for place, store in found if store in self.state.unsent}

    def _ticks(self, node: Node, flowing: Mapping[str, Flow]) -> Ticks | None:
        """Return the records that enter the sub-topology of a processor."""
        if not isinstance(node, ProcessNode):
            return None
        flows = [flowing[name] for name in sorted(self.steps.entries[node.name]) if name in flowing]
        if not flows:
            return Ticks([], root_marks(NO_ROWS, self.steps))
        marks, sides, rows = interleave(flows)
        times = [flows[side].batch.times[row] for side, row in zip(sides.tolist(), rows.tolist(), strict=True)]
        return Ticks(times, marks)

    def _take_over(self) -> dict[str, StateDelta]:
        deltas = dict(self.state.pending)
        for name, delta in deltas.items():
            store = self.stores[name]
            assert isinstance(store, Store)
            store.apply(delta)
        self.state.pending.clear()
        return deltas

    def _commit(self) -> dict[str, Change]:
        return {name: store.commit() for name, store in self.stores.items() if isinstance(store, ObjectStore)}


@contextmanager
def _collecting_later() -> Iterator[None]:
    """Pause the cyclic garbage collector, because a batch creates many objects and none of them are in cycles."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def _released_before(flow: Flow, releases: Releases) -> Flow:
    """Return an arrived flow without the rows to leave out, which an earlier stage released."""
    releases.arrived(flow.marks)
    kept = releases.kept(flow.batch, flow.marks)
    return flow if len(kept) == flow.batch.height else Flow(flow.batch.take(kept), flow.marks[kept])


def _of_root(flow: Flow, root: int) -> Flow:
    rows = np.flatnonzero(flow.marks[:, ROOT] == root)
    return Flow(flow.batch.take(rows), flow.marks[rows])


def merged(results: Sequence[TaskResult], stores: Mapping[str, AnyStore]) -> TaskResult:
    """Merge the results of consecutive runs into one."""
    outputs = {
        name: Flow(
            concatenate(first.batch.layout, [result.outputs[name].batch for result in results]),
            np.concatenate([result.outputs[name].marks for result in results]),
        )
        for name, first in results[0].outputs.items()
    }
    deltas: dict[str, StateDelta] = {}
    changes: dict[str, Change] = {}
    dropped: dict[str, int] = {}
    for result in results:
        for store, delta in result.deltas.items():
            spec = stores[store].spec
            assert isinstance(spec, StoreSpec)
            deltas[store] = deltas[store].followed_by(delta, spec.key) if store in deltas else delta
        for store, change in result.changes.items():
            changes[store] = changes[store].followed_by(change) if store in changes else change
        for node, count in result.dropped.items():
            dropped[node] = dropped.get(node, 0) + count
    return TaskResult(outputs=outputs, deltas=deltas, changes=changes, dropped=dropped)


def root_marks(roots: Rows, steps: Steps, *, source_number: int = 0) -> Marks:
    """Return the marks of input records."""
    marks = np.zeros((len(roots), FIXED + steps.fork_count), dtype=np.int64)
    marks[:, ROOT] = roots
    marks[:, CHANNEL] = source_number
    return marks


def _is_computed(node: Node) -> bool:
    """Return whether a table has no store in Kafka Streams, which computes its rows from the table above."""
    if isinstance(node, TableFilterNode | TableMapNode | TableSelectNode | TableTableJoinNode):
        return node.store is None
    return isinstance(node, MaterializeNode | WindowCopyNode)


def _entries(
    nodes: Sequence[Node], subtopologies: Mapping[str, int], received: Iterable[str]
) -> dict[str, frozenset[str]]:
    """Return for each processor the heads of its sub-topology: inputs from outside or through a topic.

    ``received`` are nodes whose rows come in. Some have no children here, and only advance stream time.
    """
    heads = {*received, *(parent for node in nodes for parent in node.parents)} - {node.name for node in nodes}
    heads |= {node.name for node in nodes if isinstance(node, RepartitionNode)}
    return {
        node.name: frozenset(head for head in heads if subtopologies.get(head) == subtopologies[node.name])
        for node in nodes
        if isinstance(node, ProcessNode)
    }
