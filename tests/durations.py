"""Recorded durations of test files, by which ``make test`` distributes the files.

pytest-xdist gives a file to a process as a whole, in the order of files. Therefore the longest files come first, and
none of them is left for one process alone at the end. ``make durations`` runs the suite and writes ``durations.json``.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path

import pytest

RECORDED = Path(__file__).with_name("durations.json")
SPARK_SECONDS = 60.0
"""The assumed duration of a file without a record that needs Spark."""


def recorded_seconds() -> dict[str, float]:
    """Return the recorded seconds of each file, by its path from the repository's root."""
    return json.loads(RECORDED.read_text("utf-8")) if RECORDED.exists() else {}


def longest_first(items: list[pytest.Item]) -> list[pytest.Item]:
    """Order items by the duration of their files, longest first. Items of one file keep their order."""
    seconds = defaultdict(float, recorded_seconds())
    for item in items:
        if file_of(item.nodeid) not in seconds and item.get_closest_marker("spark") is not None:
            seconds[file_of(item.nodeid)] = SPARK_SECONDS
    return sorted(items, key=lambda item: (-seconds[file_of(item.nodeid)], file_of(item.nodeid)))


def file_of(nodeid: str) -> str:
    """Return the file of a test."""
    return nodeid.partition("::")[0]


class Recorder:
    """A plugin that sums the durations of each file's tests.

    It writes them if no test has failed, because a failed test may have waited for minutes.
    """

    def __init__(self) -> None:
        self._seconds: dict[str, float] = defaultdict(float)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Add the duration of a test's phase to its file."""
        self._seconds[file_of(report.nodeid)] += report.duration

    def pytest_sessionfinish(self, exitstatus: int) -> None:
        """Write the present durations into ``durations.json``, and keep those of other files that still exist."""
        if exitstatus != pytest.ExitCode.OK:
            return
        RECORDED.write_text(merged(recorded_seconds(), self._seconds, existing()), "utf-8")


def merged(before: dict[str, float], now: dict[str, float], files: Iterable[str]) -> str:
    """Return the text of ``durations.json``, with the newest duration of each file that still exists."""
    kept = {file: round((before | now)[file], 1) for file in sorted(files) if file in before or file in now}
    return json.dumps(kept, indent=1) + "\n"


def existing() -> list[str]:
    """Return the existing test files."""
    root = RECORDED.parent.parent
    return [path.relative_to(root).as_posix() for path in RECORDED.parent.rglob("test_*.py")]
