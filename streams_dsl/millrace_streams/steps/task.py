"""A task: all operators of a sub-topology over one bucket, run on one batch after the other.

The same object runs in Spark's workers, in a batch job and in the test driver; they differ in where batches come from,
where outputs go and where the stores are kept in between.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import polars as pl

from millrace_streams.graph import AggregateNode, DeltaSinkNode, TopicSinkNode
from millrace_streams.steps.aggregate import AggregateStep
from millrace_streams.steps.stateless import Operator, run_stateless
from millrace_streams.steps.store import StateDelta, Store, StoreSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskResult:
    """What a batch gave: outputs by sink, changes by store, and by node what was dropped."""

    outputs: Mapping[str, pl.DataFrame]
    deltas: Mapping[str, StateDelta]
    dropped: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class StatefulSteps:
    """The stateful steps of a task, by node name; made once and used for all its batches and buckets."""

    by_node: Mapping[str, AggregateStep]

    @classmethod
    def of(cls, operators: Sequence[Operator]) -> StatefulSteps:
        """The steps of the stateful operators among these."""
        return cls(
            {
                operator.node.name: AggregateStep(operator.node, operator.given, operator.result)
                for operator in operators
                if isinstance(operator.node, AggregateNode)
            }
        )

    def stores(self) -> list[StoreSpec]:
        """The stores that they keep."""
        return [step.store for step in self.by_node.values()]


@dataclass(slots=True)
class Task:
    """Operators, parents first, with the stores of one bucket. ``head`` names the node whose output comes in."""

    head: str
    operators: Sequence[Operator]
    steps: StatefulSteps
    stores: dict[str, Store] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Begin with empty stores where none were given."""
        for spec in self.steps.stores():
            self.stores.setdefault(spec.name, Store(spec))

    def run(self, batch: pl.DataFrame) -> TaskResult:
        """Run a batch, in record order, through all operators and take its changes over into the stores.

        Raises ``UserFunctionError`` when a function of the user's fails; the stores are then not to be used any more.
        """
        flowing = {self.head: batch}
        outputs: dict[str, pl.DataFrame] = {}
        deltas: dict[str, StateDelta] = {}
        dropped: dict[str, int] = {}
        for operator in self.operators:
            node = operator.node
            given = flowing[node.parents[0]]
            if isinstance(node, TopicSinkNode | DeltaSinkNode):
                outputs[node.name] = given
            elif isinstance(node, AggregateNode):
                step = self.steps.by_node[node.name]
                store = self.stores[node.store]
                result = step.apply(store, given)
                if result.delta is not None:
                    store.apply(result.delta)
                    deltas[node.store] = result.delta
                flowing[node.name] = result.output
                dropped[node.name] = result.dropped
            else:
                flowing[node.name] = run_stateless(operator, given)
        return TaskResult(outputs=outputs, deltas=deltas, dropped=dropped)
