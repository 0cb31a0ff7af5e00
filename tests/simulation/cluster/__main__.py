"""Command for simulated clusters, one for each seed.

    make sim SEEDS=1000          run that many seeds
    make sim SEEDS=100 FIRST=1   run that many seeds from a given one on
    make sim SEED=17             run one seed, and print a digest of all its events
    make sim PLANTED=1           plant each fault, and print a seed that finds it
    make sim SEED=17 PLANT=...   run one seed with one planted fault, by its name

``python -m tests.simulation.cluster`` does the same. A seed that fails prints itself, the step, the violation and the
last events. The same seed fails again at the same step.
"""

from __future__ import annotations

import argparse
import gc
import logging
import os
import sys
import tempfile
import time
import warnings
from collections.abc import Iterable
from contextlib import nullcontext
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from .planted import PLANTED, plant
from .world import ViolationError, World


def run(seed: int, world: type[World] = World) -> str:
    """Run a seed of a world, and return a digest of its events. Raises ``ViolationError``."""
    logging.getLogger("asyncio").setLevel(logging.CRITICAL)
    with tempfile.TemporaryDirectory(prefix="millrace-sim-") as directory:
        try:
            return world(seed, Path(directory)).run()
        finally:
            _collect()


def _collect() -> None:
    """Collect the objects of dead processes, and ignore the warnings of their collection."""
    hook = sys.unraisablehook
    sys.unraisablehook = lambda _: None
    logging.disable()
    with warnings.catch_warnings(action="ignore"):
        gc.collect()
    logging.disable(logging.NOTSET)
    sys.unraisablehook = hook


def search(seeds: range, again: str, *, keeps_going: bool) -> int:
    """Run seeds, report the failing ones and return their number.

    ``again`` is appended to the seed in the command that repeats a run.
    """
    failed = 0
    console = Console(stderr=True)
    columns = (TextColumn("seeds"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, disable=not console.is_terminal) as progress:
        for seed in progress.track(seeds):
            try:
                run(seed)
            except ViolationError as violation:
                failed += 1
                print(f"{violation}\nagain: make sim SEED={seed}{again}\n", flush=True)
                if not keeps_going:
                    break
    print(f"{failed} of {len(seeds)} seeds failed, {time.process_time():.0f} s of CPU time")
    return failed


def replay(seed: int, again: str) -> int:
    """Run one seed; returns 1 if it fails."""
    try:
        print(run(seed))
    except ViolationError as violation:
        print(f"{violation}\nagain: make sim SEED={seed}{again}")
        return 1
    return 0


def find_planted(names: Iterable[str], seeds: range) -> int:
    """Report a seed that finds each planted fault, and as which violation.

    The search begins with the seed that found the fault last. Return the number of faults not found.
    """
    unfound = 0
    for name in names:
        with plant(name):
            found = next(filter(None, map(_violation, [PLANTED[name].found_by, *seeds])), "")
        unfound += not found
        print(f"{name}: {found or 'not found'}", flush=True)
    return unfound


def _violation(seed: int) -> str:
    try:
        run(seed)
    except ViolationError as violation:
        return str(violation).splitlines()[0]
    return ""


def main(arguments: list[str]) -> int:
    """Run the command line, and return the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.simulation.cluster",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--seeds", type=int, default=100, help="the number of seeds")
    parser.add_argument("--first", type=int, default=1, help="the first of them")
    parser.add_argument("--seed", type=int, help="this one only")
    parser.add_argument("--keep-going", action="store_true", help="do not end with the first seed that fails")
    parser.add_argument("--planted", action="store_true", help="find each planted fault within so many seeds")
    parser.add_argument("--plant", choices=PLANTED, metavar="FAULT", help="with this fault in place")
    options = parser.parse_args(arguments)
    seeds = range(options.first, options.first + options.seeds)
    if options.planted:
        return min(find_planted(PLANTED, seeds), 1)
    again = f' PLANT="{options.plant}"' if options.plant else ""
    with plant(options.plant) if options.plant else nullcontext():
        if options.seed is not None:
            return replay(options.seed, again)
        return min(search(seeds, again, keeps_going=options.keep_going), 1)


if __name__ == "__main__":
    if os.environ.get("PYTHONHASHSEED") != "0":  # the order of sets of names is part of a run
        os.environ["PYTHONHASHSEED"] = "0"
        os.execv(sys.executable, [sys.executable, "-m", "tests.simulation.cluster", *sys.argv[1:]])
    sys.exit(main(sys.argv[1:]))
