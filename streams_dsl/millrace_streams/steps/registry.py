"""Registry of the steps by kind of node."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from millrace_streams.errors import TopologyError
from millrace_streams.graph import (
    AggregateNode,
    AnswerNode,
    BranchNode,
    ChildNode,
    FilterNode,
    FoldNode,
    ForEachNode,
    GroupTableNode,
    MapFunctionNode,
    MapNode,
    MapValuesNode,
    MaterializeNode,
    MergeNode,
    Node,
    PartialAggregateNode,
    PeekNode,
    ProcessNode,
    RepartitionNode,
    ResponseJoinNode,
    SelectKeyFunctionNode,
    SelectKeyNode,
    StreamStreamJoinNode,
    StreamTableJoinNode,
    SubscribeNode,
    SuppressNode,
    TableFilterNode,
    TableFoldNode,
    TableMapNode,
    TableSelectNode,
    TableTableJoinNode,
    ToStreamNode,
    ToTableNode,
    UnsentNode,
    WindowCopyNode,
)
from millrace_streams.steps.aggregate import AggregateStep
from millrace_streams.steps.filter import BranchStep, FilterStep
from millrace_streams.steps.fold import FoldStep
from millrace_streams.steps.fold_session_windows import SessionWindowsStep
from millrace_streams.steps.fold_sliding_windows import SlidingWindowsStep
from millrace_streams.steps.fold_time_windows import TimeWindowsStep
from millrace_streams.steps.foreign_key_join import AnswerStep, ResponseJoinStep, SubscribeStep
from millrace_streams.steps.map import MapStep
from millrace_streams.steps.map_values import MapFunctionStep, MapValuesStep
from millrace_streams.steps.operator import Operator, Step
from millrace_streams.steps.partial_aggregate import PartialAggregateStep
from millrace_streams.steps.passing import ChildStep, MergeStep, PeekStep, RepartitionStep, ToStreamStep
from millrace_streams.steps.process import ProcessStep
from millrace_streams.steps.select_key import SelectKeyFunctionStep, SelectKeyStep
from millrace_streams.steps.stream_stream_join import StreamStreamJoinStep
from millrace_streams.steps.stream_table_join import StreamTableJoinStep
from millrace_streams.steps.suppress import SuppressStep
from millrace_streams.steps.table_groups import GroupTableStep, TableFoldStep
from millrace_streams.steps.table_rows import TableFilterStep, TableMapStep, TableSelectStep
from millrace_streams.steps.table_source import TableSourceStep
from millrace_streams.steps.table_table_join import TableTableJoinStep
from millrace_streams.steps.window_copy import UnsentStep, WindowCopyStep
from millrace_streams.windows import SessionWindows, SlidingWindows

STATELESS: Final = (
    FilterNode,
    MapValuesNode,
    MapFunctionNode,
    MapNode,
    SelectKeyNode,
    SelectKeyFunctionNode,
    PartialAggregateNode,
)
"""Kinds of nodes that can run where a source is read, because they are stateless and need no other input."""

_STEPS: Final[dict[type[Node], Callable[[Operator], Step]]] = {
    FilterNode: FilterStep,
    BranchNode: BranchStep,
    MapValuesNode: MapValuesStep,
    MapFunctionNode: MapFunctionStep,
    MapNode: MapStep,
    SelectKeyNode: SelectKeyStep,
    SelectKeyFunctionNode: SelectKeyFunctionStep,
    PeekNode: PeekStep,
    ForEachNode: PeekStep,
    PartialAggregateNode: PartialAggregateStep,
    MergeNode: MergeStep,
    ToStreamNode: ToStreamStep,
    ToTableNode: TableSourceStep,
    MaterializeNode: TableSourceStep,
    UnsentNode: UnsentStep,
    WindowCopyNode: WindowCopyStep,
    TableFilterNode: TableFilterStep,
    TableMapNode: TableMapStep,
    TableSelectNode: TableSelectStep,
    GroupTableNode: GroupTableStep,
    TableFoldNode: TableFoldStep,
    AggregateNode: AggregateStep,
    StreamTableJoinNode: StreamTableJoinStep,
    StreamStreamJoinNode: StreamStreamJoinStep,
    TableTableJoinNode: TableTableJoinStep,
    SubscribeNode: SubscribeStep,
    AnswerNode: AnswerStep,
    ResponseJoinNode: ResponseJoinStep,
    SuppressNode: SuppressStep,
    ProcessNode: ProcessStep,
    ChildNode: ChildStep,
}


def make_step(operator: Operator, *, repartition: int = 0) -> Step:
    """Create the step of an operator; ``repartition`` is the number of a repartition in its plan.

    Raises ``TopologyError`` if there is no step.
    """
    node = operator.node
    if isinstance(node, RepartitionNode):
        return RepartitionStep(operator, repartition)
    if isinstance(node, FoldNode):
        return _fold_step(node)(operator)
    if type(node) not in _STEPS:
        raise TopologyError(f"{node.name}: {type(node).__name__} is not a node that can be run")
    return _STEPS[type(node)](operator)


def _fold_step(node: FoldNode) -> type[FoldStep]:
    if node.window is None:
        return FoldStep
    if isinstance(node.window, SessionWindows):
        return SessionWindowsStep
    return SlidingWindowsStep if isinstance(node.window, SlidingWindows) else TimeWindowsStep
