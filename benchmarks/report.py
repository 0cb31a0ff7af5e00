"""Command ``python -m benchmarks.report``, which writes ``RESULTS.md`` and its plots.

It reads the suite, the results and the history.

Invariant: each benchmark of the suite has a row, with or without a result. Goals are those of the present suite, also
for results that are older than their goal.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("svg")
from matplotlib import pyplot as plt

from benchmarks import picture, suite
from benchmarks.harness import RECORDS, REPEATS, RESULTS, Benchmark
from benchmarks.staleness import LINES_MAX, History

REPORT = RESULTS.parent / "RESULTS.md"
RATIO_PLOT = RESULTS / "ratios.svg"
FIGURE_PLOT = RESULTS / "figures.svg"
DISTURBED_CORES = 0.2
"""A run is disturbed if the CPU use of all other processes is higher than this.

``benchmarks/README.md`` states the number.
"""
_OURS, _PEER = "#1f6f8b", "#c9c9c9"

_INTRODUCTION = """\
# Benchmark results

Made by `python -m benchmarks.report` from `benchmarks/results/*.json`; do not edit. How it is measured, and how to
repeat it: [README](README.md).

Each cell is min / **median** / max of the runs. The ratio is that of two neighbouring runs, ours to the peer's;
above 1 ours is better, also where less is better. *Durability* is where written bytes were when they counted as
written: in the page cache (not synced) or on the disk (synced), on both sides alike.

Each row is one run of both sides in turn. Different rows were measured on different commits. *Commit* names the commit
and says how many lines of code changed until commit {head} in the modules that our side loads. A row is **stale**
when more than {lines_max} lines changed. A row is *disturbed* when everything else used more than {cores} cores
during a run.

| benchmark | unit | durability | millrace | peer | ratio | goal | | commit |
|---|---|---|---|---|---|---|---|---|
"""


@dataclass(frozen=True, kw_only=True)
class Row:
    """A benchmark of the suite with its result, if any yet."""

    benchmark: Benchmark
    result: Mapping[str, Any] | None = None
    changed_lines: int | None = None
    """The lines that changed since the result was measured, or ``None`` if the clone cannot tell."""


def main() -> None:
    """Write the report and its plots."""
    history = History()
    rows = [_row_of(benchmark, history) for benchmark in suite.benchmarks()]
    _style()
    results = [row.result for row in rows if row.result]
    if results:
        RATIO_PLOT.write_text(picture.picture({result["name"]: result for result in results}))
        _plot_figures(results)
    REPORT.write_text(text(rows, head=history.head))
    print(f"wrote {REPORT}")


def text(rows: Sequence[Row], *, head: str | None = None) -> str:
    """Return the report as Markdown. ``head`` is the commit up to which lines are counted."""
    plots = "\n".join(f"![{path.stem}](results/{path.name})\n" for path in (RATIO_PLOT, FIGURE_PLOT))
    introduction = _INTRODUCTION.format(
        head=f"`{head[:12]}`" if head else "(unknown)", lines_max=LINES_MAX, cores=DISTURBED_CORES
    )
    return introduction + "".join(map(_line, rows)) + f"\n{plots}\n## What was run\n" + "".join(map(_details, rows))


def goal_met(benchmark: Benchmark, result: Mapping[str, Any]) -> bool | None:
    """Tell whether the medians reach the benchmark's goal, or return ``None`` if it has none."""
    if benchmark.target_ratio is not None:
        return bool(result["ratio"]["median"] >= benchmark.target_ratio)
    if benchmark.limit is not None:
        ours, limit = result["ours"]["median"], benchmark.limit
        return bool(ours >= limit if benchmark.higher_is_better else ours <= limit)
    return None


def number(value: float) -> str:
    """Format a figure as a whole number from 100 up, and with three digits below."""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def _row_of(benchmark: Benchmark, history: History) -> Row:
    path = RESULTS / f"{benchmark.name}.json"
    if not path.exists():
        return Row(benchmark=benchmark)
    result = json.loads(path.read_text())
    return Row(benchmark=benchmark, result=result, changed_lines=history.changed_since(result))


def _line(row: Row) -> str:
    benchmark, result = row.benchmark, row.result
    cells = [f"[`{benchmark.name}`](#{benchmark.name})", benchmark.unit]
    if result is None:
        cells += [str(benchmark.durability), "**no result yet**", "", "", _goal(benchmark), "", ""]
    else:
        verdict = {True: "reached", False: "**missed**", None: ""}[goal_met(benchmark, result)]
        cells += [_durability(result), *(_spread(result[name]) for name in ("ours", "peer", "ratio"))]
        cells += [_goal(benchmark), verdict, _commit(result) + age(row.changed_lines)]
    return "| " + " | ".join(cells) + " |\n"


def _commit(result: Mapping[str, Any]) -> str:
    return f"`{result['commit'][:8]}`{''.join(f', {each}' for each in caveats(result))}: "


def caveats(result: Mapping[str, Any]) -> list[str]:
    """Return the reasons why a result is not an official one."""
    quick = result["records"] < RECORDS or result["repeats"] < REPEATS
    found = {
        "uncommitted changes": result["uncommitted_changes"],
        "disturbed": result["other_processes_cores_max"] > DISTURBED_CORES,
        f"{result['records']:,} records {result['repeats']} times": quick,
    }
    return [caveat for caveat, holds in found.items() if holds]


def age(changed_lines: int | None) -> str:
    """Return the number of lines that changed since a result was measured."""
    if changed_lines is None:
        return "unknown"
    return f"{'**stale**, ' if changed_lines > LINES_MAX else ''}{changed_lines:,} lines"


def _durability(result: Mapping[str, Any]) -> str:
    """Return the durability of a result. Results without this field never synced."""
    return str(result.get("durability", "not synced"))


def _spread(figures: dict[str, float]) -> str:
    return f"{number(figures['min'])} / **{number(figures['median'])}** / {number(figures['max'])}"


def _goal(benchmark: Benchmark) -> str:
    if benchmark.target_ratio is not None:
        return f"ratio ≥ {benchmark.target_ratio:g}"
    sign = "≥" if benchmark.higher_is_better else "≤"
    return f"{sign} {number(benchmark.limit)} {benchmark.unit}" if benchmark.limit is not None else ""


def _details(row: Row) -> str:
    benchmark, result = row.benchmark, row.result
    lines = [f"\n### {benchmark.name}\n"]
    if result is None:
        lines += [
            f"{benchmark.title}. No result yet: `make bench ONLY={benchmark.name}`\n",
            *_sides(benchmark.ours.what, benchmark.ours.settings, benchmark.peer.what, benchmark.peer.settings),
        ]
        return "\n".join(lines) + "\n"
    changed = " with uncommitted changes" if result["uncommitted_changes"] else ""
    disturbed = result["other_processes_cores_max"]
    lines += [
        f"{result['title']}. {result['records']:,} records, {result['repeats']} runs a side: `{result['command']}`\n",
        *_sides(*(result[f"{side}_{what}"] for side in ("ours", "peer") for what in ("runs", "settings"))),
        f"* Durability of what was written: {_durability(result)}",
        f"* CPU seconds of a run, servers and clients: {_cpu(result, 'ours')}, the peer {_cpu(result, 'peer')}",
        f"* {result['date']}, commit `{result['commit'][:12]}`{changed}; other processes: at most {disturbed:g} cores",
        f"* {result['machine']}",
    ]
    return "\n".join(lines) + "\n"


def _sides(ours: str, our_settings: str, peer: str, peer_settings: str) -> list[str]:
    return [f"* millrace: `{ours}`  ", f"  {our_settings}", f"* peer: `{peer}`  ", f"  {peer_settings}"]


def _cpu(result: Mapping[str, Any], side: str) -> str:
    return number(result[f"{side}_cpu_seconds"]["median"])


def _style() -> None:
    # Without these two every run of the report would change the plots' files.
    plt.rcParams["svg.hashsalt"] = "millrace"
    plt.rcParams.update({"font.size": 9, "axes.spines.top": False, "axes.spines.right": False})


def _save(path: Path) -> None:
    plt.savefig(path, metadata={"Date": None}, bbox_inches="tight")
    plt.close()


def _plot_figures(results: Sequence[Mapping[str, Any]]) -> None:
    columns = 2
    rows = -(-len(results) // columns)
    figure, grid = plt.subplots(rows, columns, figsize=(8, 1.25 * rows), squeeze=False)
    for axes in grid.flat[len(results) :]:
        axes.set_visible(False)
    for axes, result in zip(grid.flat, results, strict=False):
        sides = [result["ours"], result["peer"]]
        errors = [
            [side["median"] - side["min"] for side in sides],
            [side["max"] - side["median"] for side in sides],
        ]
        axes.barh(
            ["millrace", "peer"], [side["median"] for side in sides], xerr=errors, color=[_OURS, _PEER], height=0.6
        )
        better = "" if result["higher_is_better"] else " (less is better)"
        axes.set_title(f"{result['name']}, {result['unit']}{better}", fontsize=9, loc="left")
        axes.xaxis.set_major_formatter(lambda value, _: f"{value / 1e6:g} M" if value >= 1e5 else f"{value:g}")
        axes.invert_yaxis()
    figure.tight_layout()
    _save(FIGURE_PLOT)


if __name__ == "__main__":
    main()
