"""The page of Nexmark's figures, with a table and a plot."""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks import machine
from benchmarks.harness import commit
from benchmarks.nexmark.catalogue import QUERIES

PAGE = Path(__file__).parent / "RESULTS.md"
PLOT = PAGE.with_name("throughput.svg")

_INTRODUCTION = """\
# Nexmark: rows a second, a core

Made by `python -m benchmarks.nexmark`; do not edit. {events:,} events in three typed topics of one broker; of 50 events
one is a person, three are auctions and 46 are bids. Spark `local[2]` into its `noop` sink, the median of {repeats} runs
after an untimed one. Rows are those of the topics that a query reads. *Stream* is the same query with `availableNow`,
where it treats each bid by itself.

What the queries ask: [README](README.md); that their answers are right: `tests/integration/test_nexmark.py`.

{machine}; {date}, commit `{commit}`.

![rows a second, a core](throughput.svg)

| query | | rows | batch, rows/s a core | stream, rows/s a core |
|---|---|---:|---:|---:|
"""


@dataclass(frozen=True, slots=True)
class Measured:
    """The measured figures of a query.

    These are the rows that the query reads, and the rows/s per core in a batch and as a stream.
    """

    name: str
    rows: int
    batch: float
    stream: float | None


def line(measured: Measured) -> str:
    """Return a query's row of the table."""
    stream = "" if measured.stream is None else _figure(measured.stream)
    title = QUERIES[measured.name].title
    return f"| {measured.name} | {title} | {measured.rows:,} | {_figure(measured.batch)} | {stream} |"


def write(measured: Sequence[Measured], *, events: int, repeats: int) -> None:
    """Write the page and its plot."""
    measured_commit, changed = commit()
    head = _INTRODUCTION.format(
        events=events,
        repeats=repeats,
        machine=machine.describe(),
        date=datetime.datetime.now(datetime.UTC).date(),
        commit=measured_commit[:12] + ("` with uncommitted changes `" if changed else ""),
    )
    PAGE.write_text(head + "\n".join(map(line, measured)) + "\n", encoding="utf-8")
    _plot(measured)
    print(f"wrote {PAGE}")


def _figure(value: float) -> str:
    """Format a number with three significant digits."""
    return f"{float(f'{value:.3g}'):,.0f}"


def _plot(measured: Sequence[Measured]) -> None:
    import matplotlib

    matplotlib.use("svg")
    from matplotlib import pyplot as plt

    plt.rcParams["svg.hashsalt"] = "millrace"  # otherwise every run would change the file
    _, axes = plt.subplots(figsize=(8, 0.5 + 0.3 * len(measured)))
    places = range(len(measured))
    axes.barh([place - 0.2 for place in places], [each.batch for each in measured], 0.4, label="batch", color="#1f6f8b")
    streams = [each.stream or 0 for each in measured]
    axes.barh([place + 0.2 for place in places], streams, 0.4, label="stream", color="#e0a458")
    axes.set_yticks(list(places), [each.name for each in measured])
    axes.invert_yaxis()
    axes.set_xscale("log")
    axes.set_xlabel("rows a second, a core")
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(loc="lower right", frameon=False)
    plt.savefig(PLOT, metadata={"Date": None}, bbox_inches="tight")
    plt.close()
