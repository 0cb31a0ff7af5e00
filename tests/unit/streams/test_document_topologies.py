"""The documents' topologies, which must run; how they are compiled is in ``compiled_plans``."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from millrace.schemas import parse_schema
from millrace_streams import TopicShape, Topology, TopologyTestDriver, compile_topology, explain

ROOT = Path(__file__).resolve().parents[3]
PYTHON = re.compile(r"```python\n(.*?)```", re.DOTALL)
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
    topology = names["builder"].build() if "topology" not in names else names["topology"]
    assert isinstance(topology, Topology)
    driver = TopologyTestDriver(topology, topics=flights())
    row = {"origin": "JFK", "dep_delay": 5.0, "time_hour": NOON}
    driver.pipe_record("flights", row, timestamp_ms=0)
    assert driver.read("hourly_departures")[0]["departures"] == 1


def test_the_guides_test_of_a_topology_runs() -> None:
    names: dict[str, Any] = {"noon": NOON, "flights_schema": flights()["flights"].schema}
    exec(snippet("docs/streams/guide.md", 'to_delta("hourly_departures")'), names)
    exec(snippet("docs/streams/guide.md", "driver.pipe_record("), names)


def test_the_guides_tables_and_joins_run():
    exec(snippet("docs/streams/guide.md", 'builder.table("customers"'), {})


def test_the_guide_shows_the_plan_of_its_topology() -> None:
    names: dict[str, Any] = {}
    exec(snippet("docs/streams/guide.md", 'to_delta("hourly_departures")'), names)
    [shown] = re.findall(r"```\n(Read topic flights\n.*?)```", (ROOT / "docs/streams/guide.md").read_text(), re.DOTALL)
    assert shown == explain(compile_topology(names["topology"], flights())) + "\n"
