"""Tests of the soak.

The soak resumes on the same commit, and the results of its portions add up.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from ... import soak

KILLS = soak.Suite(name="kills", what="kills", arguments=["tests/kills"], dials={"KILLS": 100}, floor=2)
STATE = soak.Suite(name="state", what="state", arguments=["tests/state"], dials={"STATE": 50}, whole=True)


class Runs:
    """A stand-in for pytest that records its runs.

    A test can interrupt it.
    """

    def __init__(self) -> None:
        self.dials: list[dict[str, int]] = []
        self.interrupted_at = -1
        self.failing: list[str] = []

    def __call__(self, arguments: Sequence[str], dials: dict[str, int]) -> tuple[int, list[str]]:
        if len(self.dials) == self.interrupted_at:
            self.interrupted_at = -1
            raise KeyboardInterrupt
        self.dials.append(dials)
        return 3, self.failing

    def rounds(self, dial: str) -> list[int]:
        return [each[dial] for each in self.dials if dial in each]


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Runs:
    made = Runs()
    monkeypatch.setattr(soak, "run_pytest", made)
    monkeypatch.setattr(soak, "SUITES", (KILLS, STATE))
    monkeypatch.setattr(soak, "REPORT", tmp_path / "soak.md")
    monkeypatch.setattr(soak, "STATE", tmp_path / "build" / "soak.json")
    on_commit(monkeypatch, "abc1234")
    return made


def on_commit(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setattr(soak, "commit", lambda: name)


def run(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setattr("sys.argv", ["soak.py", *arguments])
    return soak.main()


def interrupted(monkeypatch: pytest.MonkeyPatch, runs: Runs, at: int) -> None:
    runs.interrupted_at = at
    with pytest.raises(KeyboardInterrupt):
        run(monkeypatch)
    runs.dials.clear()


def test_an_interrupted_soak_continues_with_the_next_portion(runs: Runs, monkeypatch: pytest.MonkeyPatch) -> None:
    interrupted(monkeypatch, runs, at=7)
    assert "| kills | kills | 35 | 3 | 0 |" in soak.REPORT.read_text()
    assert run(monkeypatch) == 0
    assert runs.rounds("KILLS") == [5] * 13
    assert runs.rounds("STATE") == [50]
    assert "| kills | kills | 100 | 3 | 0 |" in soak.REPORT.read_text()
    runs.dials.clear()
    assert run(monkeypatch) == 0
    assert runs.dials == [], "all rounds of this commit have run"


@pytest.mark.parametrize("commits", [("abc1234", "def5678"), ("abc1234 (with local changes)",) * 2])
def test_on_other_files_it_starts_again(runs: Runs, monkeypatch: pytest.MonkeyPatch, commits: tuple[str, str]) -> None:
    on_commit(monkeypatch, commits[0])
    interrupted(monkeypatch, runs, at=7)
    on_commit(monkeypatch, commits[1])
    assert run(monkeypatch) == 0
    assert sum(runs.rounds("KILLS")) == 100


def test_a_soak_with_restart_begins_again(runs: Runs, monkeypatch: pytest.MonkeyPatch) -> None:
    interrupted(monkeypatch, runs, at=7)
    assert run(monkeypatch, "--restart") == 0
    assert sum(runs.rounds("KILLS")) == 100


def test_a_failure_before_the_interruption_still_counts(runs: Runs, monkeypatch: pytest.MonkeyPatch) -> None:
    runs.failing = ["tests.kills::test_it"]
    interrupted(monkeypatch, runs, at=2)
    runs.failing = []
    assert run(monkeypatch) == 1
    assert "* `tests.kills::test_it`" in soak.REPORT.read_text()


def test_a_suite_with_costly_portions_runs_in_few(runs: Runs, monkeypatch: pytest.MonkeyPatch) -> None:
    costly = soak.Suite(name="kills", what="kills", arguments=[], dials={"KILLS": 100}, portion=40)
    monkeypatch.setattr(soak, "SUITES", (costly,))
    assert run(monkeypatch) == 0
    assert runs.rounds("KILLS") == [40, 40, 20]


def test_more_hours_add_to_what_has_run(runs: Runs, monkeypatch: pytest.MonkeyPatch) -> None:
    assert run(monkeypatch, "--hours", str(soak.HOURS / 2), "--only", "kills") == 0
    assert sum(runs.rounds("KILLS")) == 50
    assert run(monkeypatch, "--only", "kills") == 0
    assert sum(runs.rounds("KILLS")) == 100


def children() -> list[str]:
    return [pid for task in Path("/proc/self/task").iterdir() for pid in (task / "children").read_text().split()]


def test_busy_loops_run_beside_the_tests_and_end_with_them(runs: Runs, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []

    def record(arguments: Sequence[str], dials: dict[str, int]) -> tuple[int, list[str]]:
        seen.append(len(children()))
        return runs(arguments, dials)

    beside = soak.Suite(name="beside", what="all", arguments=["tests"], repeats=2, busy_loops=2)
    monkeypatch.setattr(soak, "SUITES", (beside,))
    monkeypatch.setattr(soak, "run_pytest", record)
    before = len(children())
    assert run(monkeypatch) == 0
    assert seen == [before + 2] * 2
    assert len(children()) == before
