"""Every module of the suite is a benchmark with one goal, and every benchmark has a row in the report."""

from __future__ import annotations

import re

import pytest
from benchmarks import report, suite
from benchmarks.harness import RESULTS, Durability

NAMES = suite.names()
WITHOUT_DISK = {"rows_decode"}
"""These measure code in memory; every other one has to say when its sides wait for the disk."""


@pytest.mark.parametrize("name", NAMES)
def test_a_module_holds_a_benchmark_of_its_name(name: str) -> None:
    (benchmark,) = suite.benchmarks([name])
    assert benchmark.name == name
    assert (benchmark.target_ratio is None) != (benchmark.limit is None), "a benchmark has one goal"
    assert benchmark.ours.settings
    assert benchmark.peer.settings
    if name not in WITHOUT_DISK:
        assert "fsync" in benchmark.ours.settings
        assert "fsync" in benchmark.peer.settings
    assert benchmark.durability in Durability


def test_every_benchmark_has_a_row_in_the_report() -> None:
    rows = re.findall(r"^\| \[`(\w+)`\]\(#\1\) \|", report.REPORT.read_text(), re.MULTILINE)
    assert rows == NAMES, "run python -m benchmarks.report"


def test_every_result_belongs_to_a_benchmark() -> None:
    assert {path.stem for path in RESULTS.glob("*.json")} <= set(NAMES)
