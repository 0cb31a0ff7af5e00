"""Tests of the comparison of two commits.

Each commit is measured by its own code.
"""

from __future__ import annotations

import dataclasses
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
from benchmarks.compare import __main__ as command
from benchmarks.compare import report
from benchmarks.compare.rule import PAIRS, Verdict
from benchmarks.compare.trees import CommitTree, extract, full_name, needs_no_more
from benchmarks.harness import PROJECT, Benchmark, Side
from benchmarks.workspace import BenchmarkError, Workspace

_PROJECT_FILES = {
    "constraints.txt": "",
    "pyproject.toml": '[project]\nname = "small"\n',
    "benchmarks/__init__.py": "",
    "benchmarks/workspace.py": (PROJECT / "benchmarks/workspace.py").read_text(),
    "benchmarks/imports.py": (PROJECT / "benchmarks/imports.py").read_text(),
    "benchmarks/suite/__init__.py": "",
    "benchmarks/harness.py": """
from contextlib import contextmanager
from types import SimpleNamespace

class Context:
    def __init__(self, workspace, records):
        self.records = records
    def __enter__(self):
        return self
    def __exit__(self, *_):
        pass

def benchmark(figure):
    @contextmanager
    def open_side(context):
        yield lambda: SimpleNamespace(figure=figure(), answer=context.records)
    return SimpleNamespace(ours=SimpleNamespace(open=open_side))
""",
    "benchmarks/suite/small.py": """
import millrace
from benchmarks.harness import benchmark

BENCHMARK = benchmark(lambda: sum(range(200_000)) and millrace.SPEED)
""",
}
SMALL = Benchmark(
    name="small",
    title="A small row",
    unit="rows/s",
    ours=Side(what="", settings="", open=lambda _: pytest.fail("the row of this checkout was measured")),
    peer=Side(what="", settings="", open=lambda _: pytest.fail("the peer was measured")),
)


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """Create a project whose older commit is twice as fast as its newer one."""
    project = tmp_path / "project"
    for speed in (100.0, 50.0):
        for name, text in {**_PROJECT_FILES, "platform/millrace/__init__.py": f"SPEED = {speed}\n"}.items():
            (project / name).parent.mkdir(parents=True, exist_ok=True)
            (project / name).write_text(text)
        _git(project, "init", "--quiet")
        _git(project, "add", ".")
        _git(project, "-c", "user.name=t", "-c", "user.email=t@example.org", "commit", "--quiet", "-m", f"{speed}")
    return project


def _git(project: Path, *arguments: str) -> None:
    subprocess.run(["git", *arguments], cwd=project, check=True)


@pytest.fixture
def workspace(tmp_path: Path) -> Workspace:
    return Workspace(tmp_path / "cache")


def _commits(project: Path, workspace: Workspace) -> dict[str, CommitTree]:
    named = {"old": "HEAD~1", "new": "HEAD"}
    return {name: extract(full_name(revision, project), workspace, project) for name, revision in named.items()}


def _arguments(**options: Any) -> Any:
    return type("Arguments", (), {"pairs": PAIRS, "records": 7, "quiet_seconds_max": 0, **options})


def test_each_commit_is_measured_by_its_own_code(project: Path, workspace: Workspace) -> None:
    pairs: list[None] = []
    found = command.compare(SMALL, _commits(project, workspace), workspace, _arguments(), lambda: pairs.append(None))
    assert found["old"]["figures"] == [100.0] * PAIRS
    assert found["new"]["figures"] == [50.0] * PAIRS
    assert found["verdict"] == Verdict.FELL
    assert found["ratio"]["mean"] == pytest.approx(0.5)
    assert found["old"]["commit"] != found["new"]["commit"]
    assert len(pairs) == PAIRS


def test_fewer_pairs_give_no_verdict(project: Path, workspace: Workspace) -> None:
    found = command.compare(SMALL, _commits(project, workspace), workspace, _arguments(pairs=2), lambda: None)
    assert found["verdict"] == Verdict.NONE


def test_a_commit_is_extracted_whole_and_once(project: Path, workspace: Workspace) -> None:
    tree = _commits(project, workspace)["old"]
    assert tree.suite() == {"small"}
    (tree.folder / "mark").touch()
    assert (_commits(project, workspace)["old"].folder / "mark").exists()
    assert not list(workspace.folder("compare/commits").glob("*.unfinished"))


def test_a_commit_that_the_clone_lacks_is_refused(project: Path) -> None:
    with pytest.raises(BenchmarkError, match="has no commit 1234567"):
        full_name("1234567", project)


@pytest.mark.parametrize(
    ("old", "new", "same"),
    [
        ({}, {}, True),
        ({"constraints.txt": "numpy==2.0\n"}, {"constraints.txt": "numpy==2.0\npolars==1.0\n"}, True),
        ({"constraints.txt": "numpy==2.0\n"}, {"constraints.txt": "numpy==2.1\n"}, False),
        ({"pyproject.toml": '[project]\ndependencies = ["numpy"]\n'}, {}, False),
        ({"pyproject.toml": '[project.scripts]\nmillrace = "a:b"\n'}, {}, False),
    ],
)
def test_a_commit_has_this_environment_where_versions_and_commands_match(
    tmp_path: Path, old: dict[str, str], new: dict[str, str], same: bool
) -> None:
    for name, files in {"old": old, "new": new}.items():
        (tmp_path / name).mkdir()
        for file, text in {**_PROJECT_FILES, **files}.items():
            if "/" not in file:
                (tmp_path / name / file).write_text(text)
    assert needs_no_more(tmp_path / "old", tmp_path / "new") == same


def _samples(figures: list[float], cpu_seconds: float = 1.0) -> list[dict[str, Any]]:
    return [{"figure": figure, "answer": 7, "cpu_seconds": cpu_seconds, "other_cores": 0.1} for figure in figures]


def _compared(
    benchmark: Benchmark, old: list[float], new: list[float], *, cpu: tuple[float, float] = (1.0, 1.0)
) -> dict[str, Any]:
    commits = {name: CommitTree(name * 14, Path()) for name in ("old", "new")}
    samples = {"old": _samples(old, cpu[0]), "new": _samples(new, cpu[1])}
    return command.compared(benchmark, commits, samples, 7)


def test_if_less_is_better_a_longer_time_is_a_fall() -> None:
    times = dataclasses.replace(SMALL, higher_is_better=False)
    assert _compared(times, [1.0] * PAIRS, [1.1] * PAIRS)["verdict"] == Verdict.FELL
    assert _compared(times, [1.1] * PAIRS, [1.0] * PAIRS)["verdict"] == Verdict.DID_NOT_FALL


def test_cpu_seconds_stand_beside_and_do_not_judge() -> None:
    found = _compared(SMALL, [1.0] * PAIRS, [1.0] * PAIRS, cpu=(1.0, 4.0))
    assert found["cpu_ratio"]["mean"] == pytest.approx(0.25)
    assert found["verdict"] == Verdict.DID_NOT_FALL


def test_runs_shorter_than_the_clock_of_cpu_seconds_have_no_cpu_ratio() -> None:
    assert _compared(SMALL, [1.0] * PAIRS, [1.0] * PAIRS, cpu=(0.0, 1.0))["cpu_ratio"] is None


def test_the_report_marks_a_row_that_fell() -> None:
    text = report.text([_compared(SMALL, [100.0] * PAIRS, [50.0] * PAIRS)])
    assert "| `small` | rows/s | 100 | 50 | 0.500 / **0.500** / 0.500 | 1.000 / **1.000** / 1.000 | **fell** |" in text
    assert "`oldoldol` to `newnewne`" in text


@pytest.mark.parametrize(("cores", "says"), [(0.19, "0.19 |"), (0.2, "0.2 |"), (0.21, "0.21, **disturbed** |")])
def test_the_report_marks_a_disturbed_comparison(cores: float, says: str) -> None:
    found = _compared(SMALL, [1.0] * PAIRS, [1.0] * PAIRS) | {"other_processes_cores_max": cores}
    assert report.text([found]).rstrip().endswith(says)


def test_the_readme_states_the_rule() -> None:
    readme = " ".join((PROJECT / "benchmarks/README.md").read_text().split())
    assert re.search(r"alternate nine times in one run.*95 % interval of the pairs' ratios lies below 0\.97", readme)
