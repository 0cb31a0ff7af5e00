"""Recorded durations of test files, by which the processes of ``make test`` share the files between them.

pytest-xdist gives a file to a process as a whole. It takes files in their order; so the longest come first, and none of
them is left over for one process alone at the end. ``make durations`` runs the suite and writes ``durations.json``.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path

import pytest

RECORDED = Path(__file__).with_name("durations.json")
SPARK_SECONDS = 60.0
"""Taken for a file that nobody has recorded and that needs Spark."""


def recorded_seconds() -> dict[str, float]:
    """The recorded seconds of each file, by its path from the repository's root."""
    return json.loads(RECORDED.read_text("utf-8")) if RECORDED.exists() else {}


def longest_first(items: list[pytest.Item]) -> list[pytest.Item]:
    """Order items by the duration of their files, longest first; a file's items keep their order."""
    seconds = defaultdict(float, recorded_seconds())
    for item in items:
        if file_of(item.nodeid) not in seconds and item.get_closest_marker("spark") is not None:
            seconds[file_of(item.nodeid)] = SPARK_SECONDS
    return sorted(items, key=lambda item: (-seconds[file_of(item.nodeid)], file_of(item.nodeid)))


def file_of(nodeid: str) -> str:
    """The file of a test."""
    return nodeid.partition("::")[0]


class Recorder:
    """A plugin that adds up how long the tests of each file took, and writes it down if all of them ran."""

    def __init__(self) -> None:
        self._seconds: dict[str, float] = defaultdict(float)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Add a phase of a test to its file."""
        self._seconds[file_of(report.nodeid)] += report.duration

    def pytest_sessionfinish(self) -> None:
        """Write ``durations.json``: what ran now, and what is known of other files that are still there."""
        RECORDED.write_text(merged(recorded_seconds(), self._seconds, existing()), "utf-8")


def merged(before: dict[str, float], now: dict[str, float], files: Iterable[str]) -> str:
    """The text of ``durations.json``: files that still exist, each with its newest duration."""
    kept = {file: round((before | now)[file], 1) for file in sorted(files) if file in before or file in now}
    return json.dumps(kept, indent=1) + "\n"


def existing() -> list[str]:
    """The test files that there are."""
    root = RECORDED.parent.parent
    return [path.relative_to(root).as_posix() for path in RECORDED.parent.rglob("test_*.py")]
