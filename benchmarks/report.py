"""``python -m benchmarks.report``: makes ``RESULTS.md`` and its plots from the result files, and from nothing else."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("svg")
from matplotlib import pyplot as plt
from matplotlib.ticker import LogLocator, NullFormatter

from benchmarks.harness import RESULTS

REPORT = RESULTS.parent / "RESULTS.md"
RATIO_PLOT = RESULTS / "ratios.svg"
FIGURE_PLOT = RESULTS / "figures.svg"
_OURS, _PEER, _GOAL = "#1f6f8b", "#c9c9c9", "#d1495b"

_INTRODUCTION = """\
# Benchmark results

Made by `python -m benchmarks.report` from `benchmarks/results/*.json`; do not edit. How it is measured, and how to
repeat it: [README](README.md).

Each cell is min / **median** / max of the runs. The ratio is that of two neighbouring runs, ours to the peer's;
above 1 ours is better, also where less is better. *Durability* is where written bytes were when they counted as
written: in the page cache (not synced) or on the disk (synced), on both sides alike.

| benchmark | unit | durability | millrace | peer | ratio | goal | |
|---|---|---|---|---|---|---|---|
"""


def main() -> None:
    """Write the report and its plots."""
    results = [json.loads(path.read_text()) for path in sorted(RESULTS.glob("*.json"))]
    if not results:
        raise SystemExit("benchmarks/results holds no results: run `make bench` first")
    _style()
    _plot_ratios(results)
    _plot_figures(results)
    REPORT.write_text(text(results))
    print(f"wrote {REPORT}")


def text(results: list[dict[str, Any]]) -> str:
    """The report as Markdown."""
    plots = "\n".join(f"![{path.stem}](results/{path.name})\n" for path in (RATIO_PLOT, FIGURE_PLOT))
    return (
        _INTRODUCTION + "".join(map(_row, results)) + f"\n{plots}\n## What was run\n" + "".join(map(_details, results))
    )


def goal_met(result: dict[str, Any]) -> bool | None:
    """Whether the medians reach the goal; ``None`` where there is none."""
    if result.get("target_ratio") is not None:
        return bool(result["ratio"]["median"] >= result["target_ratio"])
    if result.get("limit") is not None:
        ours, limit = result["ours"]["median"], result["limit"]
        return bool(ours >= limit if result["higher_is_better"] else ours <= limit)
    return None


def number(value: float) -> str:
    """A figure as people read it: whole from 100 up, three digits below."""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def _row(result: dict[str, Any]) -> str:
    verdict = {True: "reached", False: "**missed**", None: ""}[goal_met(result)]
    cells = [f"[`{result['name']}`](#{result['name']})", result["unit"], _durability(result)]
    cells += [_spread(result[name]) for name in ("ours", "peer", "ratio")]
    cells += [_goal(result), verdict]
    return "| " + " | ".join(cells) + " |\n"


def _durability(result: dict[str, Any]) -> str:
    """What writing meant; before results said it, nothing was ever synced."""
    return str(result.get("durability", "not synced"))


def _spread(figures: dict[str, float]) -> str:
    return f"{number(figures['min'])} / **{number(figures['median'])}** / {number(figures['max'])}"


def _goal(result: dict[str, Any]) -> str:
    if result.get("target_ratio") is not None:
        return f"ratio ≥ {result['target_ratio']:g}"
    sign = "≥" if result["higher_is_better"] else "≤"
    return f"{sign} {result['limit']:g} {result['unit']}" if result.get("limit") is not None else ""


def _details(result: dict[str, Any]) -> str:
    changed = " with uncommitted changes" if result["uncommitted_changes"] else ""
    disturbed = result["other_processes_cores_max"]
    lines = [
        f"\n### {result['name']}\n",
        f"{result['title']}. {result['records']:,} records, {result['repeats']} runs a side: `{result['command']}`\n",
        f"* millrace: `{result['ours_runs']}`  ",
        f"  {result['ours_settings']}",
        f"* peer: `{result['peer_runs']}`  ",
        f"  {result['peer_settings']}",
        f"* Durability of what was written: {_durability(result)}",
        f"* CPU seconds of a run, servers and clients: {_cpu(result, 'ours')}, the peer {_cpu(result, 'peer')}",
        f"* {result['date']}, commit `{result['commit'][:12]}`{changed}; other processes: at most {disturbed:g} cores",
        f"* {result['machine']}",
    ]
    return "\n".join(lines) + "\n"


def _cpu(result: dict[str, Any], side: str) -> str:
    return number(result[f"{side}_cpu_seconds"]["median"])


def _style() -> None:
    # Without these two every run of the report would change the plots' files.
    plt.rcParams["svg.hashsalt"] = "millrace"
    plt.rcParams.update({"font.size": 9, "axes.spines.top": False, "axes.spines.right": False})


def _save(path: Path) -> None:
    plt.savefig(path, metadata={"Date": None}, bbox_inches="tight")
    plt.close()


def _plot_ratios(results: list[dict[str, Any]]) -> None:
    names = [result["name"] for result in results]
    medians = [result["ratio"]["median"] for result in results]
    low = [result["ratio"]["median"] - result["ratio"]["min"] for result in results]
    high = [result["ratio"]["max"] - result["ratio"]["median"] for result in results]
    _, axes = plt.subplots(figsize=(8, 0.5 + 0.42 * len(results)))
    axes.barh(names, medians, xerr=[low, high], color=_OURS, height=0.6, error_kw={"lw": 1, "capsize": 3})
    goals = [(result["target_ratio"], place) for place, result in enumerate(results) if result.get("target_ratio")]
    for label, (goal, place) in zip(["goal", *["_"] * len(goals)], goals, strict=False):
        axes.plot([goal, goal], [place - 0.4, place + 0.4], color=_GOAL, lw=2.5, label=label)
    axes.axvline(1, color="grey", lw=0.8, ls=":")
    axes.set_xscale("log")
    axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}×")
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.set_xlabel("times better than the peer (median; whiskers: least and greatest)")
    axes.invert_yaxis()
    if goals:
        axes.legend(loc="lower right", frameon=False)
    _save(RATIO_PLOT)


def _plot_figures(results: list[dict[str, Any]]) -> None:
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
