"""Plans are what was reviewed, and there is one that shows each kind of node and each rewriting."""

from __future__ import annotations

import pytest

from millrace_streams import graph
from millrace_streams.graph import Node, TableNode

from .compiled_plans import PLANS, compiled, snapshot, topologies

TOPOLOGIES = topologies()
REMEDY = "look at the change, and take it over by: python -m tests.unit.streams.compiled_plans"


@pytest.mark.parametrize("name", sorted(TOPOLOGIES))
def test_a_plan_is_as_reviewed(name: str) -> None:
    path = PLANS / f"{name}.txt"
    assert path.is_file(), REMEDY
    assert snapshot(TOPOLOGIES[name]) == path.read_text(encoding="utf-8"), REMEDY


def test_no_plan_is_left_over() -> None:
    assert {path.stem for path in PLANS.iterdir()} == set(TOPOLOGIES), REMEDY


def test_every_kind_of_node_is_shown() -> None:
    kinds = {
        kind for name in graph.__all__ if isinstance(kind := getattr(graph, name), type) and issubclass(kind, Node)
    }
    shown = {type(node) for topology in TOPOLOGIES.values() for node in compiled(topology).topology.nodes}
    assert kinds - shown == {Node, TableNode}, "the bases alone"
