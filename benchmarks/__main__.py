"""Command that runs benchmarks, and writes results and report.

Run it by ``python -m benchmarks``.

An interrupted run resumes: it does not repeat finished benchmarks if commit, records and repeats are the same. After a
failed benchmark, the others are still measured.
"""

from __future__ import annotations

import argparse
import signal
import sys
import time

from benchmarks import harness, report, suite
from benchmarks.harness import Benchmark
from benchmarks.progress import Progress
from benchmarks.workspace import BenchmarkError, Workspace


def _arguments(names: list[str]) -> argparse.Namespace:
    description = (__doc__ or "").partition("\n")[0]
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=description)
    parser.add_argument("--only", metavar="NAME", action="append", choices=names, help="run this one (can be repeated)")
    parser.add_argument("--list", action="store_true", help="show the benchmarks and end")
    parser.add_argument("--repeats", type=int, default=harness.REPEATS, help="measurements of each side (default: 3)")
    parser.add_argument(
        "--records", type=int, default=harness.RECORDS, help="records of the data set (default: 10 million)"
    )
    parser.add_argument("--side", choices=("ours", "peer"), help="measure one side only; nothing is written then")
    parser.add_argument("--quiet-seconds-max", type=float, default=120, help="wait at most so long for idle CPUs")
    parser.add_argument("--no-write", action="store_true", help="write neither results nor report")
    parser.add_argument("--restart", action="store_true", help="do not go on with a run that was interrupted")
    return parser.parse_args()


def main() -> int:
    """Run the command line's benchmarks. Return 1 if a measurement failed."""
    arguments = _arguments(suite.names())
    benchmarks = suite.benchmarks(arguments.only)
    if arguments.list:
        for benchmark in benchmarks:
            print(f"{benchmark.name:24} {benchmark.title}")
        return 0
    # An unhandled SIGTERM would leave servers and workers behind, so they are stopped on the way out.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    started = time.monotonic()
    try:
        failed = _run_all(benchmarks, arguments)
    except BenchmarkError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    if not arguments.no_write and not arguments.side:
        report.main()
    print(f"{len(benchmarks)} benchmarks in {(time.monotonic() - started) / 60:.1f} minutes")
    if failed:
        print(f"error: not measured: {', '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0


def _run_all(benchmarks: list[Benchmark], arguments: argparse.Namespace) -> list[str]:
    """Measure the benchmarks one after the other, and return the names of the failed ones."""
    sides = (arguments.side,) if arguments.side else ("ours", "peer")
    options = harness.Options(arguments.repeats, arguments.quiet_seconds_max, sides)
    # A quick look or a single benchmark always runs completely. Only whole runs resume.
    is_whole = not (arguments.only or arguments.side or arguments.no_write)
    failed = []
    with Workspace() as workspace, harness.Context(workspace, arguments.records) as context:
        progress = Progress(workspace, f"{harness.commit()[0]} {arguments.records} {arguments.repeats}")
        done = progress.finished() if is_whole and not arguments.restart else set()
        for benchmark in benchmarks:
            if benchmark.name in done:
                print(f"{benchmark.name}: finished before the interruption (--restart measures it again)", flush=True)
                continue
            try:
                result = harness.run(benchmark, context, options)
            except BenchmarkError as error:
                print(f"error: {benchmark.name}: {error}", file=sys.stderr, flush=True)
                failed.append(benchmark.name)
                continue
            if result and not arguments.no_write:
                print(f"  wrote {harness.write(result)}", flush=True)
            if is_whole:
                progress.add(benchmark.name)
        if is_whole and not failed:
            progress.clear()
    return failed


if __name__ == "__main__":
    sys.exit(main())
