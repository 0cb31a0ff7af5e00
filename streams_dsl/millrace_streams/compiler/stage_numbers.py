"""Stage number of each node: the number of repartitions before it.

A stage runs between two repartitions. Rows that a later stage needs are *sent* there, to the bucket of the row's key.
So a stage may receive rows with different placements. Rows of a topic are in the partition that its producer chose.
Sent rows are placed by millrace's own hash.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal, TypeAlias

from millrace_streams.compiler.plan import Plan
from millrace_streams.compiler.tables import looked_up
from millrace_streams.errors import UnsupportedTopologyError
from millrace_streams.graph import (
    AnswerNode,
    GroupTableNode,
    MapNode,
    MergeNode,
    Node,
    ProcessNode,
    RepartitionNode,
    SelectKeyFunctionNode,
    SelectKeyNode,
    StreamTableJoinNode,
    SubscribeNode,
)
from millrace_streams.layout import Layout
from millrace_streams.steps import Operator

Placement: TypeAlias = Literal["partition", "key", "other"]
"""Placement of rows: by their key's partition, by the hash of their key, or by a former key."""

_NEW_KEY: Final = (SelectKeyFunctionNode, MapNode, GroupTableNode, SubscribeNode, AnswerNode)


@dataclass(slots=True)
class StageNumbers:
    """Numbers of the stages on which the nodes of a plan run.

    The nodes are those of the plan's task, and the heads of its readers, whose number is 0. ``everywhere`` are the
    nodes of global tables, which run on each stage that uses them, in every bucket.
    """

    plan: Plan
    number: dict[str, int] = field(default_factory=dict)
    everywhere: frozenset[str] = frozenset()
    _moves: frozenset[str] = frozenset()
    _placed: dict[str, Placement] = field(default_factory=dict)

    @classmethod
    def of(cls, plan: Plan) -> StageNumbers:
        """Determine the stages. Raises ``UnsupportedTopologyError`` for processors of different stages that share a
        store.
        """
        moves = frozenset(each.node.name for each in plan.task if isinstance(each.node, RepartitionNode))
        numbers = cls(plan, everywhere=_everywhere(plan), _moves=moves)
        for reader in plan.readers:
            if not reader.source.broadcast:
                numbers.number[reader.head] = 0
                numbers._placed[reader.head] = _placed_by_key(plan.layouts[reader.head], "partition")
        for operator in plan.task:
            if operator.node.name not in numbers.everywhere:
                numbers._place(operator)
        for operator in reversed(plan.task):
            if operator.node.name not in numbers.everywhere:
                numbers._raise(operator.node)
        numbers._check_shared_stores()
        return numbers

    def available(self, name: str) -> int:
        """Return the first stage that can read a node's rows: its own stage, or the next one after a repartition."""
        return self.number[name] + (name in self._moves)

    def parents(self, node: Node) -> list[str]:
        """Return the parents whose rows come from buckets."""
        return [name for name in node.parents if name not in self.everywhere]

    def _place(self, operator: Operator) -> None:
        node = operator.node
        parents = self.parents(node)
        here = max(self.available(name) for name in parents)
        found = {self._found(name, here) for name in parents}
        if len(parents) > 1 and _brings_together(operator) and found not in ({"partition"}, {"key"}):
            here += 1
        here = max([here, *(self.available(name) for name in self.plan.advancing.get(node.name, ()))])
        self.number[node.name] = here
        self._placed[node.name] = self._result(operator, parents, here)

    def _found(self, name: str, here: int) -> Placement:
        """Return the placement of a parent's rows on a stage; rows sent there are placed by key."""
        return self._placed[name] if self.available(name) == here else "key"

    def _result(self, operator: Operator, parents: list[str], here: int) -> Placement:
        node = operator.node
        found = {self._found(name, here) for name in parents}
        if isinstance(node, RepartitionNode):
            return "key"
        changed = isinstance(node, _NEW_KEY) or (isinstance(node, ProcessNode) and not node.fixed_key)
        if changed or len(found) > 1:
            return "other"
        [placed] = found
        return _placed_by_key(operator.result, placed) if isinstance(node, SelectKeyNode) else placed

    def _raise(self, node: Node) -> None:
        """Move a table to the stage that looks up its rows, if no earlier stage needs it."""
        children = list(self.plan.topology.children(node.name))
        looking = [self.number[child.name] for child in children if node.name in looked_up(child)]
        if looking and max(looking) > self.number[node.name]:
            self.number[node.name] = min(self.number[child.name] for child in children)

    def _check_shared_stores(self) -> None:
        users: dict[str, Node] = {}
        for operator in self.plan.task:
            node = operator.node
            if not isinstance(node, ProcessNode):
                continue
            for store in node.stores:
                other = users.setdefault(store, node)
                if self.number[other.name] != self.number[node.name]:
                    raise UnsupportedTopologyError(
                        f"{node.name}: it shares the store {store} with {other.name}, but records move to other "
                        "buckets between them: give each a store of its own, or run it in the test driver"
                    )


def _brings_together(operator: Operator) -> bool:
    """Return whether rows of one key must be in one bucket across all parents."""
    node = operator.node
    if isinstance(node, MergeNode):
        return operator.result.bucket_columns is not None
    return not (isinstance(node, StreamTableJoinNode) and node.selector is not None)


def _placed_by_key(layout: Layout, placed: Placement) -> Placement:
    """Return the placement, which is other than by key if the bucket depends on a part of the key, or on no key."""
    return placed if layout.key and layout.bucket_columns == layout.key else "other"


def _everywhere(plan: Plan) -> frozenset[str]:
    found = {reader.head for reader in plan.readers if reader.source.broadcast}
    for operator in plan.task:
        if operator.node.parents and all(name in found for name in operator.node.parents):
            found.add(operator.node.name)
    return frozenset(found)


def prologues(plan: Plan, numbers: StageNumbers, stateless: Mapping[str, bool]) -> dict[str, frozenset[str]]:
    """Return the nodes of the first stage that can run at their source, by the source's head.

    They and all nodes before them come from one source and are stateless, and no stateful node of their stage needs
    them.
    """
    head_of = {reader.head: reader.head for reader in plan.readers if not reader.source.broadcast}
    first = [each.node for each in plan.task if numbers.number.get(each.node.name) == 0]
    for node in first:
        found = {head_of.get(name) for name in node.parents}
        head = found.pop()
        if not found and head is not None and stateless[node.name]:
            head_of[node.name] = head
    heads = set(head_of.values())
    while late := {name for name in _not_alone(first, set(head_of)) if name not in heads}:
        head_of = {name: head for name, head in head_of.items() if name not in late}
    nodes: dict[str, set[str]] = {}
    for name, head in head_of.items():
        nodes.setdefault(head, set()).update({name} - {head})
    return {head: frozenset(names) for head, names in nodes.items()}


def _not_alone(nodes: Sequence[Node], early: set[str]) -> set[str]:
    """Return early nodes that another node needs which is not early, and early nodes that need such a node."""
    found: set[str] = set()
    for node in nodes:
        if node.name not in early:
            found.update(early & set(node.parents))
        elif not early.issuperset(node.parents):
            found.add(node.name)
    return found
