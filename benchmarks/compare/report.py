"""``COMPARISONS.md``, made from ``comparisons/*.json``."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.compare.rule import FELL_BELOW, PAIRS, Verdict
from benchmarks.report import DISTURBED_CORES, number

COMPARISONS = Path(__file__).parents[1] / "comparisons"
REPORT = COMPARISONS.parent / "COMPARISONS.md"

_INTRODUCTION = f"""\
# Comparisons of commits

Made by `python -m benchmarks.compare` from `benchmarks/comparisons/*.json`; do not edit. The rule: [README](README.md).

Each row is one run in which two commits of Millrace alternate. A ratio above 1 means that the new commit is better,
also where less is better. Its three figures are the 95 % interval and, in bold, the geometric mean of the pairs'
ratios. A row **fell** when {PAIRS} pairs have an interval below {FELL_BELOW:g}. The CPU ratio is that of the CPU
seconds, above 1 if the new commit needs fewer. *Other cores* is the CPU use of everything else, at most.
Of a disturbed row the interval is wide, so that a fall may hide in it: measure again on a quiet machine.

| benchmark | unit | old | new | ratio | CPU ratio | | pairs | commits | other cores |
|---|---|---|---|---|---|---|---|---|---|
"""


def write() -> Path:
    """Write the report."""
    REPORT.write_text(text([json.loads(path.read_text()) for path in sorted(COMPARISONS.glob("*.json"))]))
    return REPORT


def text(comparisons: Sequence[Mapping[str, Any]]) -> str:
    """Return the report as Markdown."""
    return _INTRODUCTION + "".join(map(_line, comparisons))


def _line(comparison: Mapping[str, Any]) -> str:
    judged = comparison["verdict"]
    cells = [
        f"`{comparison['name']}`",
        comparison["unit"],
        *(f"{number(comparison[side]['median'])}" for side in ("old", "new")),
        _interval(comparison["ratio"]),
        _interval(comparison["cpu_ratio"]) if comparison["cpu_ratio"] else "",
        f"**{judged}**" if judged == Verdict.FELL else judged,
        f"{comparison['pairs']} of {comparison['records']:,} records",
        f"`{comparison['old']['commit'][:8]}` to `{comparison['new']['commit'][:8]}`",
        _other_cores(comparison["other_processes_cores_max"]),
    ]
    return "| " + " | ".join(cells) + " |\n"


def _other_cores(cores: float) -> str:
    return f"{cores:g}, **disturbed**" if cores > DISTURBED_CORES else f"{cores:g}"


def _interval(figures: Mapping[str, float]) -> str:
    return f"{figures['low']:.3f} / **{figures['mean']:.3f}** / {figures['high']:.3f}"


if __name__ == "__main__":
    print(f"wrote {write()}")
