"""Tests of a topology's picture.

The picture is complete, nothing overlaps, and records flow downwards.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from itertools import combinations
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from typer.testing import CliRunner

from millrace.errors import EnvironmentProblemError, UsageError
from millrace_streams import StreamsBuilder, Topology, TopologyError
from millrace_streams.cli.streams import app

from .generated_topologies import topology_at_random

NAMESPACE = "{http://www.w3.org/2000/svg}"
WORD_COUNT = Path(__file__).parents[3] / "jobs" / "word_count.py"


def enriched() -> Topology:
    builder = StreamsBuilder()
    orders = builder.stream("orders", key="string", value="long", name="read")
    customers = builder.table("customers", key="string", value="string", store="customers", name="customers")
    lines = orders.join(customers, lambda amount, name: name, value="string", name="join")
    lines.repartition("moved", name="move").to("lines", name="write")
    lines.group_by_key().count(store="counts", name='"count" & <keep>').to_delta("counts", name="upsert")
    return builder.build()


def test_a_mermaid_flowchart_has_sub_topologies_topics_stores_and_tables() -> None:
    assert (
        enriched().describe("mermaid")
        == """\
flowchart TD
  b0(["orders"])
  b2(["customers"])
  b6(["moved-repartition"])
  b9(["lines"])
  b12[("counts")]
  subgraph part0["Sub-topology: 0"]
    b1["read"]
    b3["KSTREAM-SOURCE-0000000000"]
    b4["customers<br/>store customers"]
    b5["join"]
    b10["#34;count#34; #38; #60;keep#62;<br/>store counts"]
    b11["upsert"]
  end
  subgraph part1["Sub-topology: 1"]
    b7["move"]
    b8["write"]
  end
  b0 --> b1
  b2 --> b3
  b3 --> b4
  b1 --> b5
  b4 --> b5
  b5 --> b6
  b6 --> b7
  b7 --> b8
  b8 --> b9
  b5 --> b10
  b10 --> b11
  b11 --> b12"""
    )


def test_a_picture_names_everything() -> None:
    root = ElementTree.fromstring(enriched().describe("svg"))
    texts = [text.text for text in root.iter(f"{NAMESPACE}text")]
    names = ["orders", "moved-repartition", "lines", "counts", "customers", "store customers", "read", "join", "upsert"]
    assert set(names) <= set(texts)
    assert '"count" & <keep>' in texts
    titles = [title.text for title in root.iter(f"{NAMESPACE}title")]
    assert (titles.count("topic"), titles.count("Delta table"), titles.count("sub-topology 1")) == (4, 1, 2)
    assert enriched()._repr_svg_() == enriched().describe("svg")


@pytest.mark.parametrize("run", range(40))
def test_nothing_overlaps_and_records_flow_downwards(run: int, seed: int) -> None:
    builder = StreamsBuilder()
    topology_at_random(builder, random.Random(seed).choice)
    root = ElementTree.fromstring(builder.build().describe("svg"))
    boxes = [
        tuple(float(rect.attrib[name]) for name in ("x", "y", "width", "height"))
        for group in root.iter(f"{NAMESPACE}g")
        for rect in group.iter(f"{NAMESPACE}rect")
    ]
    for (x, y, width, height), (other_x, other_y, other_width, other_height) in combinations(boxes, 2):
        beside = x + width <= other_x or other_x + other_width <= x
        assert beside or y + height <= other_y or other_y + other_height <= y
    right, bottom = float(root.attrib["width"]), float(root.attrib["height"])
    assert all(x >= 0 and y >= 0 and x + width <= right and y + height <= bottom for x, y, width, height in boxes)
    edges = [path.attrib["d"] for path in root if path.tag == f"{NAMESPACE}path"]
    assert edges
    for edge in edges:
        numbers = [float(word.lstrip("MC")) for word in edge.split()]
        assert numbers[1] < numbers[-1]


def test_an_unknown_format_is_refused() -> None:
    with pytest.raises(TopologyError, match="format='dot': describe as text, svg or mermaid"):
        enriched().describe("dot")  # type: ignore[arg-type]


@pytest.fixture
def command() -> Callable[..., Any]:
    return lambda *arguments: CliRunner().invoke(app, ["describe", *map(str, arguments)], catch_exceptions=True)


def test_the_command_prints_and_draws(command: Callable[..., Any], tmp_path: Path) -> None:
    assert "(stores: [word-counts])" in command(WORD_COUNT).stdout
    for name, begins in (("words.svg", "<svg"), ("words.mmd", "flowchart TD")):
        assert command(WORD_COUNT, "--picture", tmp_path / name).exit_code == 0
        assert (tmp_path / name).read_text().startswith(begins)


def test_the_command_says_what_it_cannot_draw(command: Callable[..., Any], tmp_path: Path) -> None:
    wrong = command(WORD_COUNT, "--picture", "words.png").exception
    assert isinstance(wrong, UsageError)
    assert "ending in .svg, or .mmd" in str(wrong)
    nowhere = command(WORD_COUNT, "--picture", tmp_path / "no" / "words.svg").exception
    assert isinstance(nowhere, EnvironmentProblemError)
