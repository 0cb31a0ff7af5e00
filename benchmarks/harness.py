"""Measurement of two sides against each other.

This module also defines the content of a result file. Both sides are opened (servers up, data loaded, code warm) before
the first measurement. Then they are measured in turn: ours, the peer's, ours, and so on. Each measurement waits until
the machine is quiet, and the other side is idle. Each pair of neighbours gives one ratio. The answers of both sides are
compared, because a fast wrong answer is an error and not a figure.
"""

from __future__ import annotations

import datetime
import json
import statistics
import subprocess
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks import imports, machine
from benchmarks.imports import PROJECT
from benchmarks.workspace import BenchmarkError, Workspace

if TYPE_CHECKING:
    from benchmarks.ours import MillraceBroker
    from benchmarks.peers.kafka import KafkaBroker

RESULTS = Path(__file__).parent / "results"
RECORDS = 10_000_000
REPEATS = 3
"""The size of an official run. The report names any smaller size."""
# The benchmarks themselves write these files, so a change in them does not change the measured commit.
_GENERATED = ("benchmarks/results", "benchmarks/RESULTS.md", "benchmarks/comparisons", "benchmarks/COMPARISONS.md")


@dataclass(frozen=True, kw_only=True)
class Sample:
    """One measured figure in the benchmark's unit.

    Both sides have to agree on the answer.
    """

    figure: float
    answer: Any = None


Measure = Callable[[], Sample]


class Durability(StrEnum):
    """The state from which on bytes count as written.

    The state is the same on both sides.
    """

    NOT_SYNCED = "not synced"
    """They are in the page cache, and the kernel writes them at a time of its own."""
    SYNCED_AT_END = "synced at the end"
    """They are in the page cache. The time of the final sync of all of them counts."""
    SYNCED = "synced"
    """They are on the disk."""
    NOTHING_WRITTEN = "nothing written"


@dataclass(frozen=True, kw_only=True)
class Side:
    """One of the two sides, with its command, settings and preparation."""

    what: str
    settings: str
    open: Callable[[Context], AbstractContextManager[Measure]]


@dataclass(frozen=True, kw_only=True)
class Benchmark:
    """A comparison. ``target_ratio`` and ``limit`` are the goals that the report shows.

    The limit is one of our own figure. The figure must not exceed it, or must reach it if higher is better.
    """

    name: str
    title: str
    unit: str
    ours: Side
    peer: Side
    higher_is_better: bool = True
    target_ratio: float | None = None
    limit: float | None = None
    durability: Durability = Durability.NOT_SYNCED

    def ratio(self, ours: float, peer: float) -> float:
        """Return how many times better our figure is."""
        return ours / peer if self.higher_is_better else peer / ours


@dataclass
class Context:
    """The shared parts of one run.

    These are the workspace, the number of records, and one server of each side.
    """

    workspace: Workspace
    records: int
    _stack: ExitStack = field(default_factory=ExitStack)

    # The clients of both sides are imported here, because a benchmark without brokers does not load them.

    @cached_property
    def kafka(self) -> KafkaBroker:
        """Return a running Kafka broker. Its topics are kept from run to run."""
        from benchmarks.peers.kafka import KafkaBroker

        return self._stack.enter_context(KafkaBroker(self.workspace))

    @property
    def millrace(self) -> MillraceBroker:
        """Return a running millrace broker on an empty folder, so that no earlier version's data is measured."""
        imports.count_process(self._millrace.log)
        return self._millrace

    @cached_property
    def _millrace(self) -> MillraceBroker:
        from benchmarks.ours import MillraceBroker

        return self._stack.enter_context(MillraceBroker(self.workspace, empty=True))

    def __enter__(self) -> Context:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()


@dataclass(frozen=True)
class Options:
    """Options of the measurement."""

    repeats: int = REPEATS
    quiet_seconds_max: float = 120
    sides: Sequence[str] = ("ours", "peer")


def run(benchmark: Benchmark, context: Context, options: Options) -> dict[str, Any] | None:
    """Measure one benchmark and return its result, or ``None`` if only one side was requested."""
    print(f"{benchmark.name}: {benchmark.title}", flush=True)
    sides = {name: getattr(benchmark, name) for name in options.sides}
    samples: dict[str, list[float]] = {name: [] for name in sides}
    cpu: dict[str, list[machine.CpuUse]] = {name: [] for name in sides}
    answers: dict[str, Any] = {}
    recording = imports.Recording()
    recorded = {"ours": recording.active, "peer": nullcontext}
    with ExitStack() as stack:
        measures: dict[str, Measure] = {}
        for name, side in sides.items():
            with recorded[name]():
                measures[name] = stack.enter_context(side.open(context))
        for turn in range(options.repeats):
            for name, measure in measures.items():
                machine.wait_until_quiet(options.quiet_seconds_max)
                with recorded[name](), machine.CpuUse() as use:
                    sample = measure()
                samples[name].append(sample.figure)
                cpu[name].append(use)
                answers.setdefault(name, sample.answer)
                print(f"  {turn + 1} {name}: {_line(sample, benchmark, use)}", flush=True)
                if not agree(*answers.values(), sample.answer):
                    raise BenchmarkError(f"{benchmark.name}: the sides do not agree: {answers}, {sample.answer}")
    if len(sides) < 2:
        return None
    modules = recording.modules() | _imported_by_suite(benchmark.name, context.workspace)
    return {**_result(benchmark, context, options, samples, cpu), "modules": imports.packed(modules)}


def _imported_by_suite(name: str, workspace: Workspace) -> set[str]:
    """Return the imports of the benchmark's own module, because some benchmarks measure in this process."""
    module = f"benchmarks.suite.{name}"
    return imports.imported_by(module, workspace.folder("logs")) if find_spec(module) else set()


def summary(figures: Sequence[float]) -> dict[str, float]:
    """Return least, median and greatest, to four significant digits."""
    chosen = {"min": min(figures), "median": statistics.median(figures), "max": max(figures)}
    return {name: float(f"{value:.4g}") for name, value in chosen.items()}


def write(result: dict[str, Any], folder: Path = RESULTS) -> Path:
    """Write a result to the file that the report reads."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{result['name']}.json"
    path.write_text(json.dumps(result, indent=2) + "\n")
    return path


def _result(
    benchmark: Benchmark,
    context: Context,
    options: Options,
    samples: dict[str, list[float]],
    cpu: dict[str, list[machine.CpuUse]],
) -> dict[str, Any]:
    pairs = zip(samples["ours"], samples["peer"], strict=True)
    measured_commit, modified = commit()
    return {
        "name": benchmark.name,
        "unit": benchmark.unit,
        "ours": summary(samples["ours"]),
        "peer": summary(samples["peer"]),
        "ratio": summary([benchmark.ratio(ours, peer) for ours, peer in pairs]),
        "machine": machine.describe(),
        "commit": measured_commit,
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "title": benchmark.title,
        "higher_is_better": benchmark.higher_is_better,
        "target_ratio": benchmark.target_ratio,
        "limit": benchmark.limit,
        "durability": benchmark.durability,
        "command": f"make bench ONLY={benchmark.name}",
        "ours_runs": benchmark.ours.what,
        "ours_settings": benchmark.ours.settings,
        "peer_runs": benchmark.peer.what,
        "peer_settings": benchmark.peer.settings,
        "records": context.records,
        "repeats": options.repeats,
        "ours_cpu_seconds": summary([use.own_seconds for use in cpu["ours"]]),
        "peer_cpu_seconds": summary([use.own_seconds for use in cpu["peer"]]),
        "other_processes_cores_max": round(max(use.other_cores for uses in cpu.values() for use in uses), 2),
        "uncommitted_changes": modified,
    }


def _line(sample: Sample, benchmark: Benchmark, use: machine.CpuUse) -> str:
    figure = f"{sample.figure:,.3g}" if sample.figure < 100 else f"{sample.figure:,.0f}"
    return f"{figure} {benchmark.unit} (CPU {use.own_seconds:.1f} s; others: {use.other_cores:.2f} cores)"


def agree(*answers: Any) -> bool:
    """Tell whether all answers are the same. Sums of floats may differ by the order of their summands."""
    first, *rest = answers
    if isinstance(first, float):
        return all(abs(first - other) <= 1e-9 * abs(first) for other in rest)
    if isinstance(first, list):
        return all(len(first) == len(other) and all(map(agree, first, other)) for other in rest)
    return all(first == other for other in rest)


def commit() -> tuple[str, bool]:
    """Return the measured commit, and whether its files were changed."""

    def git(*arguments: str) -> str:
        return subprocess.run(["git", *arguments], cwd=PROJECT, capture_output=True, text=True, check=True).stdout

    excluded = [f":!{path}" for path in _GENERATED]
    return git("rev-parse", "HEAD").strip(), bool(git("status", "--porcelain", "--", ".", *excluded).strip())
