"""Topologies of the documents, which must run.

Their compiled plans are in ``compiled_plans``.
"""

from __future__ import annotations

import re
import sys
from datetime import UTC, datetime
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from millrace.schemas import parse_schema
from millrace_streams import TopicShape, Topology, TopologyTestDriver, compile_topology, explain

ROOT = Path(__file__).resolve().parents[3]
PYTHON = re.compile(r"```python[^\n]*\n(.*?)```", re.DOTALL)
NOON = datetime(2013, 1, 1, 12, tzinfo=UTC)


def flights() -> dict[str, TopicShape]:
    return {"flights": TopicShape(schema=parse_schema(ROOT / "conf/demo/flights.ddl"), key_columns=("origin",))}


def snippet(document: str, containing: str) -> str:
    [found] = [code for code in PYTHON.findall((ROOT / document).read_text("utf-8")) if containing in code]
    return found


@pytest.mark.parametrize("document", ["README.md", "docs/streams/guide.md"])
def test_the_topology_of_a_document_runs(document: str) -> None:
    names: dict[str, Any] = {}
    exec(snippet(document, 'to_delta("hourly_departures")'), names)
    topology = names["topology"]() if "topology" in names else names["builder"].build()
    assert isinstance(topology, Topology)
    driver = TopologyTestDriver(topology, topics=flights())
    row = {"origin": "JFK", "dep_delay": 5.0, "time_hour": NOON}
    driver.pipe_record("flights", row, timestamp_ms=0)
    assert driver.read("hourly_departures")[0]["departures"] == 1


def test_the_guides_test_of_a_topology_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    names: dict[str, Any] = {"noon": NOON, "flights_schema": flights()["flights"].schema}
    file = ModuleType("my_topology")
    exec(snippet("docs/streams/guide.md", 'to_delta("hourly_departures")'), vars(file))
    monkeypatch.setitem(sys.modules, file.__name__, file)
    exec(snippet("docs/streams/guide.md", "driver.pipe_record("), names)


def test_the_guides_tables_and_joins_run():
    exec(snippet("docs/streams/guide.md", 'builder.table("customers"'), {})


def test_the_guide_shows_the_plan_of_its_topology() -> None:
    names: dict[str, Any] = {}
    exec(snippet("docs/streams/guide.md", 'to_delta("hourly_departures")'), names)
    guide = (ROOT / "docs/streams/guide.md").read_text("utf-8")
    [shown] = re.findall(r"```text\n(Read topic flights\n.*?)```", guide, re.DOTALL)
    [columns] = re.findall(r"millrace topics create flights --ddl '(.*?)'", guide)
    shape = TopicShape(schema=parse_schema(columns), key_columns=("origin",))
    assert shown == explain(compile_topology(names["topology"](), {"flights": shape})) + "\n"
