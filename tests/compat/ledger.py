"""The results of the suites with both brokers, as ledgers.

This module also finds the tests that Kafka passes and millrace does not. A ledger is ``ledgers/<suite>.tsv``: a test,
its result with Kafka, its result with millrace, and the reason if it did not pass with millrace.
"""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from .differences import DIFFERENCES

FOLDER = Path(__file__).parent / "ledgers"
_REASON_LENGTH_MAX = 200
_OF_ONE_RUN = (
    (re.compile(r"(?<![\w.-])(?:/[\w.+-]+)+/"), ""),
    (re.compile(r"\b127\.0\.0\.1:\d+"), "127.0.0.1"),
    (re.compile(r"rnd[0-9a-f]{8,}"), "rnd"),
)
"""Folders, ports and random names, which would differ in each run's ledger."""


@dataclass(frozen=True, slots=True)
class Result:
    """The result of a test, with a reason unless the test passed.

    The result is ``pass``, ``fail``, ``skip``, or ``-`` for a test that did not run.
    """

    state: str
    reason: str = ""


NOT_RUN = Result("-")
Results = Mapping[str, Result]


@dataclass(frozen=True, slots=True)
class Row:
    """A test of a suite with both results."""

    test: str
    kafka: Result
    millrace: Result

    @property
    def is_short(self) -> bool:
        """True if Kafka passes the test and millrace does not."""
        return self.kafka.state == "pass" and self.millrace.state != "pass"


def results_of_junit(path: Path) -> dict[str, Result]:
    """Return the results of a run of pytest. Raises ``OSError`` if pytest wrote none."""
    found = {}
    for case in ET.parse(path).iter("testcase"):
        result = Result("pass")
        for child in case:
            if child.tag in ("failure", "error", "skipped"):
                result = Result("skip" if child.tag == "skipped" else "fail", child.get("message") or "")
        module = case.get("classname", "").rsplit(".", 1)[-1]
        found[f"{module}::{case.get('name')}"] = result
    return found


def read(suite: str) -> list[Row]:
    """Return the committed ledger of a suite."""
    path = FOLDER / f"{suite}.tsv"
    lines = path.read_text(encoding="utf-8").splitlines()[1:] if path.exists() else []
    cells = [line.split("\t") for line in lines]
    return [Row(test, Result(kafka), Result(millrace, reason)) for test, kafka, millrace, reason in cells]


def write(suite: str, found: Mapping[str, Results], *, is_whole: bool) -> list[Row]:
    """Write the results by broker into the ledger. Results of brokers and tests that did not run stay.

    ``is_whole`` means that all tests of the suite ran, so that tests that are no longer in it go.
    """
    before = {row.test: row for row in read(suite)}
    tests = {test for results in found.values() for test in results}
    kept = tests if is_whole and len(found) == 2 else tests | set(before)
    rows = []
    for test in sorted(kept):
        old = before.get(test, Row(test, NOT_RUN, NOT_RUN))
        rows.append(
            Row(test, found.get("kafka", {}).get(test, old.kafka), found.get("millrace", {}).get(test, old.millrace))
        )
    FOLDER.mkdir(exist_ok=True)
    lines = ["test\tkafka\tmillrace\treason at millrace"]
    lines += [f"{row.test}\t{row.kafka.state}\t{row.millrace.state}\t{_short(row.millrace.reason)}" for row in rows]
    (FOLDER / f"{suite}.tsv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return rows


def _short(reason: str) -> str:
    for pattern, replacement in _OF_ONE_RUN:
        reason = pattern.sub(replacement, reason)
    return " ".join(reason.split())[:_REASON_LENGTH_MAX]


def complaints(suite: str, rows: list[Row]) -> Iterator[str]:
    """Yield a sentence for each test that is against what ``DIFFERENCES`` says."""
    known = DIFFERENCES.get(suite, {})
    if not any(row.millrace.state == "pass" for row in rows):
        yield f"{suite}: no test passed with millrace"
    for row in rows:
        if row.is_short and row.test not in known:
            yield f"{suite} {row.test} passes with Kafka and not with millrace: {_short(row.millrace.reason)}"
        elif row.kafka == NOT_RUN and row.millrace.state != "pass":
            yield f"{suite} {row.test} does not pass with millrace: {_short(row.millrace.reason)}"
        elif row.test in known and row.millrace.state == "pass":
            yield f"{suite} {row.test} is no difference any more: take it out of DIFFERENCES"
    for test in sorted(known.keys() - {row.test for row in rows}):
        yield f"{suite} {test} is in DIFFERENCES, and the suite has no such test"
