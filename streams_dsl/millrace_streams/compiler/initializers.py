"""Check that the values of initializers fit the types of their tables.

Each initializer is called once at compilation. The most common mistake is a missing ``value=`` for an aggregate whose
type differs from the records'. This check finds it before anything runs.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from millrace_streams.compiler.check import CheckedTopology
from millrace_streams.errors import TopologyError
from millrace_streams.frames.codec import value_columns_of
from millrace_streams.graph import FoldNode, TableFoldNode
from millrace_streams.layout import Layout
from millrace_streams.steps.results import MISFITS


def check_initializers(checked: CheckedTopology) -> None:
    """Refuse initializers whose value does not fit. Raises ``TopologyError`` naming the node."""
    for node in checked.topology.nodes:
        initializers: set[Callable[[], Any] | None] = set()
        if isinstance(node, FoldNode):
            initializers = {fold.initializer for fold in node.folds}
        elif isinstance(node, TableFoldNode):
            initializers = {node.initializer}
        for initializer in initializers:
            if initializer is not None:
                _check(node.name, initializer, checked.layouts[node.name])


def _check(node: str, initializer: Callable[[], Any], layout: Layout) -> None:
    try:
        value = initializer()
    except Exception as error:
        raise TopologyError(f"{node}: the initializer raised {type(error).__name__}: {error}") from error
    if value is None:
        return
    try:
        value_columns_of(layout, [value])
    except MISFITS as error:
        columns = [f"{name} {layout.schema.field(name).type}" for name in layout.value_columns]
        raise TopologyError(
            f"{node}: the initializer gives {value!r}, which does not fit {', '.join(columns)}: give the type of the "
            "aggregate, value=..."
        ) from error
