"""Tests of the swap of two checkpoints with crashes.

A crash comes at each step.
"""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest

from millrace.errors import UsageError
from millrace_streams.checkpoints import swap as swapping
from millrace_streams.checkpoints.swap import finish_swap, swap
from pyspark_millrace.checkpoints.running import RunningLock

NOW = datetime(2026, 5, 1, tzinfo=UTC)


def checkpoints(directory: Path) -> tuple[Path, Path]:
    old, fresh = directory / "checkpoint", directory / "fresh"
    for path in (old, fresh):
        path.mkdir()
        (path / "whose").write_text(path.name)
    return old, fresh


class CrashError(Exception):
    """The end of the process at this moment."""


@pytest.mark.parametrize("steps", range(4))
def test_a_crash_leaves_the_whole_old_or_the_whole_new_checkpoint(
    tmp_path: Path, steps: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoint, fresh = checkpoints(tmp_path)
    left = iter(range(steps))
    rename = swapping._rename

    def crashing(source: Path, target: Path) -> None:
        if next(left, None) is None:
            raise CrashError
        rename(source, target)

    monkeypatch.setattr(swapping, "_rename", crashing)
    if steps < 3:
        with pytest.raises(CrashError):
            swap(checkpoint, fresh, because="reset", now=NOW)
    else:
        swap(checkpoint, fresh, because="reset", now=NOW)
    monkeypatch.undo()
    finish_swap(checkpoint)
    assert (checkpoint / "whose").read_text() == ("checkpoint" if steps < 2 else "fresh")
    kept = tmp_path / "checkpoint.before-reset-20260501T000000000000"
    assert kept.exists() == (steps >= 2)
    assert not (tmp_path / "checkpoint.next").exists()
    assert len(list(tmp_path.glob("checkpoint.next.unused-*"))) == (steps == 1)


def test_a_swap_replaces_the_rest_of_one_that_a_crash_ended(tmp_path: Path) -> None:
    checkpoint, fresh = checkpoints(tmp_path)
    (tmp_path / "checkpoint.next").mkdir()
    (tmp_path / "checkpoint.next" / "whose").write_text("earlier")
    swap(checkpoint, fresh, because="reset", now=NOW)
    assert (checkpoint / "whose").read_text() == "fresh"
    [aside] = tmp_path.glob("checkpoint.next.unused-*")
    assert (aside / "whose").read_text() == "earlier"


def test_a_start_leaves_the_swap_of_another_process_alone(tmp_path: Path) -> None:
    checkpoint, fresh = checkpoints(tmp_path)
    fresh.rename(tmp_path / "checkpoint.next")
    lock = RunningLock.acquire(checkpoint, "a test")
    assert lock is not None
    finish_swap(checkpoint)
    lock.release()
    assert (tmp_path / "checkpoint.next").exists()


def test_a_query_that_runs_is_not_swapped(tmp_path: Path) -> None:
    checkpoint, fresh = checkpoints(tmp_path)
    lock = RunningLock.acquire(checkpoint, "a test")
    assert lock is not None
    with pytest.raises(UsageError, match=r"is running \(a test, process"):
        swap(checkpoint, fresh, because="reset", now=NOW)
    lock.release()
    assert (checkpoint / "whose").read_text() == "checkpoint"
    assert fresh.exists()
