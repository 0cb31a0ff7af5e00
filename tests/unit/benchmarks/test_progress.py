"""Tests of benchmark runs that were interrupted and are continued."""

from __future__ import annotations

from pathlib import Path

from benchmarks.progress import Progress
from benchmarks.workspace import Workspace


def test_the_same_run_continues_after_an_interruption(tmp_path: Path) -> None:
    Progress(Workspace(tmp_path), "a").add("first")
    later = Progress(Workspace(tmp_path), "a")
    assert later.finished() == {"first"}
    later.add("second")
    assert Progress(Workspace(tmp_path), "a").finished() == {"first", "second"}


def test_another_run_starts_again(tmp_path: Path) -> None:
    Progress(Workspace(tmp_path), "a").add("first")
    assert Progress(Workspace(tmp_path), "b").finished() == set()


def test_a_finished_run_leaves_nothing(tmp_path: Path) -> None:
    progress = Progress(Workspace(tmp_path), "a")
    progress.add("first")
    progress.clear()
    assert Progress(Workspace(tmp_path), "a").finished() == set()
