"""Tests of the ratios that the documents quote from the benchmarks' report."""

from __future__ import annotations

import math
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
RESULTS = ROOT / "benchmarks" / "RESULTS.md"
_ROW = re.compile(r"^\| \[`(\w+)`\]\(#\1\) \|(?:[^|]*\|){4}[^|]*\*\*([\d.,]+)\*\*[^|]*\|", re.MULTILINE)
_RATIO = re.compile(r"(?<![\d.,])(\d+(?:\.\d+)?)×")
_NAME = re.compile(r"`(\w+)`")
_DOCUMENTS = [
    ROOT / "README.md",
    *sorted(path for path in (ROOT / "docs").rglob("*.md") if "design" not in path.relative_to(ROOT).parts),
]


@cache
def _medians() -> dict[str, float]:
    return {name: float(ratio.replace(",", "")) for name, ratio in _ROW.findall(RESULTS.read_text())}


def _quoted(line: str) -> list[tuple[str, str]]:
    """Return the ratios of a line with the benchmark that the line names. A line quotes one benchmark."""
    names = [name for name in _NAME.findall(line) if name in _medians()]
    return [(name, ratio) for name in names for ratio in _RATIO.findall(line)]


def _agrees(quoted: str, median: float) -> bool:
    """Tell whether a ratio is within the rounding of the quoted digits."""
    _, _, decimals = quoted.partition(".")
    report_rounding = 0.5 * 10 ** (math.floor(math.log10(median)) - 2)  # of the three digits of the ratio
    return abs(float(quoted) - median) <= 0.5 * 10 ** -len(decimals) + report_rounding


@pytest.mark.parametrize("document", _DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_quoted_ratio_is_that_of_the_report(document: Path) -> None:
    found = [quoted for line in document.read_text().splitlines() for quoted in _quoted(line)]
    wrong = [
        f"{name}: {ratio}×, now {_medians()[name]:g}×" for name, ratio in found if not _agrees(ratio, _medians()[name])
    ]
    assert wrong == []


def test_the_readme_quotes_slower_rows_beside_faster_ones() -> None:
    ratios = [float(ratio) for line in (ROOT / "README.md").read_text().splitlines() for _, ratio in _quoted(line)]
    assert min(ratios) < 1 < max(ratios)
    assert len(ratios) >= 10


@pytest.mark.parametrize(
    ("quoted", "median", "agrees"),
    [
        ("20", 20.5, True),
        ("21", 20.5, True),
        ("22", 20.5, False),
        ("2.0", 2.05, True),
        ("2.1", 2.05, True),
        ("2.2", 2.05, False),
        ("0.59", 0.586, True),
        ("0.6", 0.586, True),
        ("0.57", 0.586, False),
        ("0.004", 0.00408, True),
        ("0.0042", 0.00408, False),
        ("113", 113, True),
        ("110", 113, False),
    ],
)
def test_a_quoted_ratio_may_be_rounded_and_no_more(quoted: str, median: float, agrees: bool) -> None:
    assert _agrees(quoted, median) == agrees
