"""Tests of compiled plans.

The plans equal the reviewed ones, and each node and rewriting has a plan.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from millrace_streams import Topology, graph
from millrace_streams.compiler import stages_of
from millrace_streams.graph import Node, TableNode

from .compiled_plans import PLANS, compiled, snapshot, topologies

REMEDY = "look at the change, and take it over by: python -m tests.unit.streams.compiled_plans"


@pytest.fixture(scope="module")
def built() -> dict[str, Topology]:
    """Build the topologies in a test and not on import, because that starts threads of Polars (tests/mutation)."""
    return topologies()


@pytest.mark.parametrize("path", sorted(PLANS.glob("*.txt")), ids=lambda path: path.stem)
def test_a_plan_is_as_reviewed(path: Path, built: dict[str, Topology]) -> None:
    assert snapshot(built[path.stem]) == path.read_text(encoding="utf-8"), REMEDY


def test_each_topology_has_a_plan_and_no_plan_is_left_over(built: dict[str, Topology]) -> None:
    assert {path.stem for path in PLANS.iterdir()} == set(built), REMEDY


def test_every_kind_of_node_is_shown(built: dict[str, Topology]) -> None:
    kinds = {
        kind for name in graph.__all__ if isinstance(kind := getattr(graph, name), type) and issubclass(kind, Node)
    }
    plans = [compiled(topology) for topology in built.values()]
    shown = {type(node) for plan in plans for node in plan.topology.nodes}
    shown |= {type(each.node) for plan in plans for stage in stages_of(plan).stages for each in stage.operators}
    assert kinds - shown == {Node, TableNode}, "only the base classes"
