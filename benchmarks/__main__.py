"""``python -m benchmarks``: run the benchmarks, write their results, make the report anew."""

from __future__ import annotations

import argparse
import importlib
import pkgutil
import signal
import sys

from benchmarks import harness, report, suite
from benchmarks.workspace import BenchmarkError, Workspace


def _arguments(names: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--only", metavar="NAME", action="append", choices=names, help="run this one (can be repeated)")
    parser.add_argument("--list", action="store_true", help="show the benchmarks and end")
    parser.add_argument("--repeats", type=int, default=3, help="measurements of each side (default: 3)")
    parser.add_argument("--records", type=int, default=10_000_000, help="records of the data set (default: 10 million)")
    parser.add_argument("--side", choices=("ours", "peer"), help="measure one side only; nothing is written then")
    parser.add_argument("--quiet-seconds-max", type=float, default=120, help="wait at most so long for idle CPUs")
    parser.add_argument("--no-write", action="store_true", help="write neither results nor report")
    return parser.parse_args()


def main() -> int:
    """Run what the command line asks for; the exit code is 1 if a measurement could not be made."""
    names = sorted(module.name for module in pkgutil.iter_modules(suite.__path__))
    arguments = _arguments(names)
    benchmarks = [importlib.import_module(f"benchmarks.suite.{name}").BENCHMARK for name in arguments.only or names]
    if arguments.list:
        for benchmark in benchmarks:
            print(f"{benchmark.name:24} {benchmark.title}")
        return 0
    # Servers and workers are ended on the way out; an unhandled SIGTERM would leave them behind.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    sides = (arguments.side,) if arguments.side else ("ours", "peer")
    options = harness.Options(arguments.repeats, arguments.quiet_seconds_max, sides)
    try:
        with Workspace() as workspace, harness.Context(workspace, arguments.records) as context:
            for benchmark in benchmarks:
                result = harness.run(benchmark, context, options)
                if result and not arguments.no_write:
                    print(f"  wrote {harness.write(result)}", flush=True)
    except BenchmarkError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    if not arguments.no_write and not arguments.side:
        report.main()
    return 0


if __name__ == "__main__":
    sys.exit(main())
