"""Tests of recorded durations, which decide the order of test files."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import pytest

from ... import durations


class Item(SimpleNamespace):
    def get_closest_marker(self, name: str) -> bool | None:
        return True if name in self.marks else None


def item(nodeid: str, *marks: str) -> Item:
    return Item(nodeid=nodeid, marks=marks)


def test_the_longest_files_come_first_and_keep_their_items_in_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(durations, "RECORDED", tmp_path / "durations.json")
    durations.RECORDED.write_text(json.dumps({"a.py": 1.0, "b.py": 90.0}))
    items = [item("a.py::2"), item("new.py::1"), item("a.py::1"), item("b.py::1"), item("sparky.py::1", "spark")]
    ordered = durations.longest_first(items)  # type: ignore[arg-type]
    assert [each.nodeid for each in ordered] == ["b.py::1", "sparky.py::1", "a.py::2", "a.py::1", "new.py::1"]


def test_a_new_duration_takes_the_place_of_the_old_one_and_files_that_are_gone_are_dropped() -> None:
    text = durations.merged(
        {"kept.py": 2.0, "gone.py": 3.0, "again.py": 1.0}, {"again.py": 7.123}, ["again.py", "kept.py"]
    )
    assert json.loads(text) == {"again.py": 7.1, "kept.py": 2.0}


def test_durations_of_a_failed_run_are_not_recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(durations, "RECORDED", tmp_path / "durations.json")
    recorder = durations.Recorder()
    recorder.pytest_sessionfinish(pytest.ExitCode.TESTS_FAILED)
    assert not durations.RECORDED.exists()
    recorder.pytest_sessionfinish(pytest.ExitCode.OK)
    assert durations.RECORDED.exists()


def test_all_recorded_files_exist() -> None:
    assert set(durations.recorded_seconds()) <= set(durations.existing()), "run: make durations"
