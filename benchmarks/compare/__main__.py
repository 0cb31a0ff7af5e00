"""Command that compares an old and a new commit of Millrace.

``python -m benchmarks.compare --old COMMIT`` measures both commits in turn, and reports the rows that fell.

A row fell when the 95 % interval of nine pairs' ratios lies below 0.97 (benchmarks/README.md).
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import signal
import statistics
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.progress import Progress as Bar

from benchmarks import machine, suite
from benchmarks.compare import report, side
from benchmarks.compare.rule import PAIRS, PAIRS_MAX, Verdict, interval, verdict
from benchmarks.compare.trees import CommitTree, extract, full_name
from benchmarks.harness import RECORDS, Benchmark, agree
from benchmarks.progress import Progress
from benchmarks.worker import served
from benchmarks.workspace import BenchmarkError, Workspace

_EXAMPLES = """\
examples:
  python -m benchmarks.compare --old 4b9dd72 --only produce_table --only consume
      nine pairs of two rows, HEAD beside 4b9dd72
  python -m benchmarks.compare --old v0.1 --new v0.2
      all rows that both commits have; an interrupted run goes on with the rows that it had not finished
  python -m benchmarks.compare --old HEAD~5 --only log_append --pairs 3 --records 1000000 --no-write
      a quick look, which gives no verdict
"""
_SIDES = ("old", "new")


def main() -> int:
    """Compare the rows that the command line asks for; the exit code is 1 if one fell or could not be measured."""
    arguments = _arguments()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        with Workspace() as workspace:
            verdicts = _compare_all(arguments, workspace)
    except BenchmarkError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    if not arguments.no_write:
        print(f"wrote {report.write()}")
    for judged in (Verdict.FELL, None):
        if names := [name for name, found in verdicts.items() if found == judged]:
            print(f"{judged or 'not measured'}: {', '.join(names)}", file=sys.stderr)
    return 1 if {Verdict.FELL, None} & set(verdicts.values()) else 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.compare",
        description=__doc__,
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--old", metavar="COMMIT", required=True, help="the commit to compare with")
    parser.add_argument("--new", metavar="COMMIT", default="HEAD", help="the commit to judge (default: HEAD)")
    parser.add_argument(
        "--only", metavar="ROW", action="append", choices=suite.names(), help="compare this row (can be repeated)"
    )
    parser.add_argument(
        "--pairs", type=int, choices=range(2, PAIRS_MAX + 1), metavar="N", default=PAIRS, help=f"default: {PAIRS}"
    )
    parser.add_argument("--records", type=int, default=RECORDS, help="records of the data set (default: 10 million)")
    parser.add_argument("--quiet-seconds-max", type=float, default=120, help="wait at most so long for idle CPUs")
    parser.add_argument("--no-write", action="store_true", help="write neither results nor report")
    parser.add_argument("--restart", action="store_true", help="do not go on with a run that was interrupted")
    return parser.parse_args()


def _compare_all(arguments: argparse.Namespace, workspace: Workspace) -> dict[str, Verdict | None]:
    """Compare one row after the other. Return ``None`` for a row that could not be measured."""
    commits = {name: extract(full_name(getattr(arguments, name)), workspace) for name in _SIDES}
    rows = _rows(arguments.only, commits)
    identity = f"{commits['old'].commit} {commits['new'].commit} {arguments.records} {arguments.pairs} {rows}"
    progress = Progress(workspace, identity, "compare/unfinished.json")
    done = set() if arguments.restart or arguments.no_write else progress.finished()
    verdicts: dict[str, Verdict | None] = {}
    with _bar() as bar:
        task = bar.add_task("", total=len(rows) * arguments.pairs)
        for benchmark in suite.benchmarks(rows):
            name = benchmark.name
            bar.update(task, description=name)
            if name in done:
                saved = json.loads((report.COMPARISONS / f"{name}.json").read_text())
                verdicts[name] = Verdict(saved["verdict"])
                bar.advance(task, arguments.pairs)
                continue
            try:
                found = compare(benchmark, commits, workspace, arguments, lambda: bar.advance(task))
            except BenchmarkError as error:
                bar.console.print(f"error: {name}: {error}", markup=False)
                verdicts[name] = None
                continue
            verdicts[name] = Verdict(found["verdict"])
            bar.console.print(f"{name}: {_summary(found)}", markup=False)
            if not arguments.no_write:
                _write(found)
                progress.add(name)
    if None not in verdicts.values() and not arguments.no_write:
        progress.clear()
    return verdicts


def _rows(only: Sequence[str] | None, commits: Mapping[str, CommitTree]) -> list[str]:
    """Return the requested rows, or all that both commits have."""
    common = commits["old"].suite() & commits["new"].suite()
    if only is None:
        return sorted(common & set(suite.names()))
    if missing := sorted(set(only) - common):
        raise BenchmarkError(f"not in both commits: {', '.join(missing)}; a new row has no old figure to compare with")
    return list(only)


def compare(
    benchmark: Benchmark,
    commits: Mapping[str, CommitTree],
    workspace: Workspace,
    arguments: argparse.Namespace,
    advance: Callable[[], None],
) -> dict[str, Any]:
    """Measure one row in pairs. Every second pair begins with the new commit, so that a drift favours neither."""
    samples: dict[str, list[dict[str, Any]]] = {name: [] for name in _SIDES}
    with ExitStack() as stack:
        runs = {
            name: stack.enter_context(_side(name, commits[name], benchmark.name, arguments.records, workspace))
            for name in _SIDES
        }
        for pair in range(arguments.pairs):
            for name in _SIDES if pair % 2 == 0 else reversed(_SIDES):
                machine.wait_until_quiet(arguments.quiet_seconds_max)
                samples[name].append(runs[name]())
            answers = [samples[name][-1]["answer"] for name in _SIDES]
            if not agree(*answers):
                raise BenchmarkError(f"the commits do not agree: {answers}")
            advance()
    return compared(benchmark, commits, samples, arguments.records)


def _side(name: str, tree: CommitTree, row: str, records: int, workspace: Workspace) -> Any:
    """Start the process that measures one commit. Return a context manager whose value measures once."""
    folder = workspace.folder(f"compare/{name}")
    repository = folder / "m2"
    if not repository.exists():  # both commits use the JARs that Maven has loaded
        os.symlink(workspace.folder("m2"), repository)
    command: list[str | Path] = [tree.python(), "-P", Path(side.__file__), row, str(records), folder]
    return served(workspace, f"compare-{name}", command, cwd=tree.folder, env=tree.environment())


def compared(
    benchmark: Benchmark,
    commits: Mapping[str, CommitTree],
    samples: Mapping[str, Sequence[Mapping[str, Any]]],
    records: int,
) -> dict[str, Any]:
    """Make the result of a row's samples, which are in the order of their pairs."""
    figures = {name: [each["figure"] for each in samples[name]] for name in _SIDES}
    cpu = {name: [each["cpu_seconds"] for each in samples[name]] for name in _SIDES}
    ratios = [benchmark.ratio(new, old) for old, new in zip(figures["old"], figures["new"], strict=True)]
    has_cpu = all(min(seconds) > 0 for seconds in cpu.values())
    cpu_ratios = [old / new for old, new in zip(cpu["old"], cpu["new"], strict=True)] if has_cpu else []
    return {
        "name": benchmark.name,
        "unit": benchmark.unit,
        "verdict": verdict(ratios),
        "ratio": asdict(interval(ratios)),
        "cpu_ratio": asdict(interval(cpu_ratios)) if cpu_ratios else None,
        **{
            name: {
                "commit": commits[name].commit,
                "median": statistics.median(figures[name]),
                "figures": figures[name],
                "cpu_seconds": cpu[name],
            }
            for name in _SIDES
        },
        "pairs": len(ratios),
        "records": records,
        "other_processes_cores_max": round(max(each["other_cores"] for name in _SIDES for each in samples[name]), 2),
        "machine": machine.describe(),
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
    }


def _summary(found: Mapping[str, Any]) -> str:
    ratio = found["ratio"]
    return f"{found['verdict']} ({ratio['low']:.3f} .. {ratio['mean']:.3f} .. {ratio['high']:.3f})"


def _write(found: Mapping[str, Any]) -> None:
    report.COMPARISONS.mkdir(exist_ok=True)
    (report.COMPARISONS / f"{found['name']}.json").write_text(json.dumps(found, indent=2) + "\n")


def _bar() -> Bar:
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TextColumn("pairs"))
    return Bar(*columns, TimeElapsedColumn(), TimeRemainingColumn())


if __name__ == "__main__":
    sys.exit(main())
