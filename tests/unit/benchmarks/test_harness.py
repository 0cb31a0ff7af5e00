"""Tests of the benchmark harness.

The tests check the order of the sides, the comparison and the result file.
"""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from benchmarks import harness, imports, report
from benchmarks.harness import Benchmark, Context, Options, Sample, Side
from benchmarks.report import Row
from benchmarks.workspace import BenchmarkError, Workspace, start

from ...integration.waiting import STALL_S


def _side(name: str, figures: list[float], log: list[str], answer: Any = None) -> Side:
    @contextlib.contextmanager
    def open_side(_: Context) -> Iterator[harness.Measure]:
        remaining = iter(figures)

        def measure() -> Sample:
            log.append(name)
            return Sample(figure=next(remaining), answer=answer)

        yield measure

    return Side(what=f"run {name}", settings=f"{name} settings", open=open_side)


def _benchmark(log: list[str], *, peer_answer: Any = 10.0, **options: Any) -> Benchmark:
    return Benchmark(
        name="example",
        title="An example",
        unit="rows/s",
        ours=_side("ours", [20.0, 40.0, 30.0], log, 10.0),
        peer=_side("peer", [10.0, 10.0, 10.0], log, peer_answer),
        **options,
    )


@pytest.fixture
def context(tmp_path: Path) -> Context:
    return Context(Workspace(tmp_path), records=1000)


def _run(benchmark: Benchmark, context: Context, **options: Any) -> Any:
    return harness.run(benchmark, context, Options(quiet_seconds_max=0, **options))


def test_sides_are_measured_in_turn(context: Context) -> None:
    log: list[str] = []
    _run(_benchmark(log), context)
    assert log == ["ours", "peer"] * 3


def test_a_result_has_the_keys_that_the_report_and_others_read(context: Context) -> None:
    result = _run(_benchmark([]), context)
    assert list(result)[:8] == ["name", "unit", "ours", "peer", "ratio", "machine", "commit", "date"]
    assert result["ours"] == {"min": 20.0, "median": 30.0, "max": 40.0}
    assert result["ratio"] == {"min": 2.0, "median": 3.0, "max": 4.0}


def test_if_less_is_better_the_ratio_is_inverted(context: Context) -> None:
    assert _run(_benchmark([], higher_is_better=False), context)["ratio"]["max"] == 0.5


def test_sums_of_floats_may_differ_in_their_last_digits(context: Context) -> None:
    assert _run(_benchmark([], peer_answer=10.0 + 1e-12), context)


def test_different_answers_are_an_error(context: Context) -> None:
    with pytest.raises(BenchmarkError, match="do not agree"):
        _run(_benchmark([], peer_answer=11.0), context)


def test_one_side_alone_gives_no_result(context: Context) -> None:
    log: list[str] = []
    assert _run(_benchmark(log), context, sides=("ours",)) is None
    assert log == ["ours"] * 3


def test_a_written_result_is_what_the_report_shows(context: Context, tmp_path: Path) -> None:
    benchmark = _benchmark([], target_ratio=4)
    result = json.loads(harness.write(_run(benchmark, context), tmp_path).read_text())
    text = report.text([Row(benchmark=benchmark, result=result, changed_lines=3)])
    assert "| [`example`](#example) | rows/s | not synced | 20 / **30** / 40 | 10 / **10** / 10 |" in text
    assert f"ratio ≥ 4 | **missed** | `{result['commit'][:8]}`" in text
    assert "1,000 records 3 times: 3 lines |" in text
    assert "ours settings" in text
    assert "peer settings" in text


@pytest.mark.parametrize(("target", "met"), [(2.9, True), (3.1, False), (None, None)])
def test_goals_are_judged_by_the_median(context: Context, target: float | None, met: bool | None) -> None:
    result = _run(_benchmark([]), context)
    assert report.goal_met(_benchmark([], target_ratio=target), result) is met


@pytest.mark.parametrize(("limit", "met"), [(29, False), (30, True), (31, True)])
def test_a_limit_is_judged_by_our_own_median(context: Context, limit: float, met: bool) -> None:
    benchmark = _benchmark([], limit=limit, higher_is_better=False)
    assert report.goal_met(benchmark, _run(benchmark, context)) is met


def test_a_benchmark_without_a_result_says_so_in_the_report() -> None:
    text = report.text([Row(benchmark=_benchmark([], target_ratio=4))])
    assert "| [`example`](#example) | rows/s | not synced | **no result yet** | | | ratio ≥ 4 | | |" in " ".join(
        text.split()
    )
    assert "### example\n\nAn example. No result yet: `make bench ONLY=example`" in text


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({}, []),
        ({"uncommitted_changes": True}, ["uncommitted changes"]),
        ({"other_processes_cores_max": 0.2}, []),
        ({"other_processes_cores_max": 0.21}, ["disturbed"]),
        ({"records": 500_000}, ["500,000 records 3 times"]),
        ({"repeats": 2}, ["10,000,000 records 2 times"]),
        ({"repeats": 9}, []),
    ],
)
def test_the_report_says_what_keeps_a_result_from_being_official(changed: dict[str, Any], says: list[str]) -> None:
    official = {"uncommitted_changes": False, "other_processes_cores_max": 0.0, "records": 10_000_000, "repeats": 3}
    assert report.caveats(official | changed) == says


def test_a_result_has_the_modules_of_our_own_processes(context: Context) -> None:
    importing = "import millrace.ids"

    @contextlib.contextmanager
    def open_side(context: Context) -> Iterator[harness.Measure]:
        process = start([sys.executable, "-c", importing], context.workspace.log("process"))
        assert process.wait(STALL_S) == 0
        yield lambda: Sample(figure=1.0)

    side = Side(what="imports", settings="", open=open_side)
    other = _side("other", [1.0] * 6, [])
    assert imports.unpacked(_run(replace(_benchmark([]), ours=side, peer=other), context)["modules"]) >= {
        "platform/millrace/ids.py"
    }
    assert _run(replace(_benchmark([]), ours=other, peer=side), context)["modules"] == {}


def test_a_second_run_in_the_same_workspace_is_refused(tmp_path: Path) -> None:
    with Workspace(tmp_path), pytest.raises(BenchmarkError, match="another benchmark run"), Workspace(tmp_path):
        pass
