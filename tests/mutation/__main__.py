"""Mutation testing of the modules that decide.

Run it by ``make mutants``, or ``python -m tests.mutation``.

    make mutants                         3,000 mutants drawn by a new seed; writes docs/mutants.md
    make mutants SEED=7 COUNT=300        the mutants of a seed
    make mutants ONLY=filters            an area, or modules whose paths contain the word; the page is unchanged
    make mutants ONLY=filters TESTS=tests/unit/spark_source/filters      only these tests judge

An interrupted run resumes when it is started again with its seed, if sources and tests are unchanged. After a change it
takes over the kills whose module and test have the same code (``kills``). With FRESH=1 it takes over none. Verdicts and
coverage are in ``.mutants/``.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from .judging import Judge, Judgement, Verdict, run
from .kills import Kills
from .mutants import Mutant, find_mutants, names_of
from .report import CLASSES, summary, write_page
from .scope import AREAS, ROOT, TESTS, modules

STATE = ROOT / ".mutants"
_TREES = ("platform", "broker", "spark_source", "streams_dsl", "tests")


def tree_digest(root: Path = ROOT) -> str:
    """Return the digest of the present sources and tests. The reasons for survivors may change without another run."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z", *_TREES]
    listed = subprocess.run(command, cwd=root, capture_output=True, check=True).stdout.decode().split("\0")
    digest = hashlib.sha256()
    for name in sorted(set(listed)):
        path = root / name
        if name and path != root / CLASSES.relative_to(ROOT) and path.is_file():
            digest.update(name.encode() + b"\0" + hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()[:12]


def draw(candidates: dict[str, Mutant], seed: int, count: int) -> list[str]:
    """Draw names of mutants, or return all if there are not so many.

    Each name is drawn by its own digest, so that a change of the sources replaces few of the drawn mutants.
    """

    def place(name: str) -> bytes:
        return hashlib.sha256(f"{seed} {name}".encode()).digest()

    return sorted(candidates, key=place)[:count]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(prog="tests.mutation", description=__doc__.splitlines()[0])
    parser.add_argument("--seed", type=int, help="the seed that draws the mutants (default: a random one)")
    parser.add_argument("--count", type=int, default=3000, help="the number of mutants")
    parser.add_argument("--only", default="", help="an area, or part of the modules' paths")
    parser.add_argument("--tests", nargs="*", default=TESTS, help="tests that judge")
    parser.add_argument("--names", type=Path, help="judge the mutants that this file names, a line each")
    parser.add_argument("--state", type=Path, default=STATE, help="the directory of verdicts and coverage")
    parser.add_argument("--controls", type=int, default=20, help="unchanged runs, to see tests that fail by themselves")
    parser.add_argument("--fresh", action="store_true", help="take over no kills of earlier runs")
    parser.add_argument("--workers", type=int, default=2)
    options = parser.parse_args(arguments)
    seed = random.SystemRandom().getrandbits(32) if options.seed is None else options.seed
    is_whole = not options.only and not options.names and tuple(options.tests) == TESTS
    is_area = options.only in AREAS
    areas = {
        path: area for path, area in modules().items() if options.only == area or (not is_area and options.only in path)
    }
    candidates: dict[str, Mutant] = {}
    for path in areas:
        mutants = find_mutants(ROOT, path)
        candidates |= dict(zip(names_of(mutants), mutants, strict=True))
    names = draw(candidates, seed, options.count)
    if options.names:
        wanted = options.names.read_text().splitlines()
        names = [name for name in wanted if name in candidates]
    say(f"{len(names)} of {len(candidates)} mutants of {len(areas)} modules; go on or repeat with SEED={seed}")

    digest = tree_digest()
    scope = hashlib.sha256(json.dumps([options.only, *options.tests]).encode()).hexdigest()[:8]
    options.state.mkdir(exist_ok=True)
    state = options.state / f"{digest}-{scope}-{seed}-{options.names.stem if options.names else options.count}.jsonl"
    kills = Kills(options.state / "kills.jsonl", ROOT)
    verdicts = ({} if options.fresh else kills.known(names)) | read_state(state)
    if kept := sum(each.is_kept for each in verdicts.values()):
        say(f"{kept} of them were killed in earlier runs, by tests that are the same, in modules that are the same")
    todo = [name for name in names if name not in verdicts]
    controls = [name for name in (f"control {number}" for number in range(options.controls)) if name not in verdicts]
    started = time.monotonic()

    with state.open("a") as file:

        def judged(name: str, judgement: Judgement) -> None:
            verdicts[name] = judgement
            kills.add(name, judgement)
            file.write(json.dumps({"name": name} | asdict(judgement)) + "\n")
            file.flush()
            done = len(verdicts)
            if judgement.verdict in (Verdict.SURVIVED, Verdict.UNCOVERED) and not name.startswith("control"):
                say(f"{judgement.verdict} ({judgement.seconds:.0f} s): {name}")
            if done % 100 == 0:
                say(f"{done} of {len(names)} in {(time.monotonic() - started) / 60:.0f} min; {summary(verdicts)}")

        drawn = [(name, candidates[name]) for name in todo]
        judge = Judge(
            [*drawn, *((name, None) for name in controls)],
            judged,
            coverage_file=options.state / f"{digest}-{scope}.coverage",
            files=list(areas),
            workers=options.workers,
            say=say,
        )
        if (todo or controls) and (status := run(judge, options.tests, 1)):
            return status
    say(summary(verdicts))
    say(f"verdicts: {state}")
    if is_whole:
        write_page(verdicts, areas, len(candidates), seed)
    return 0


def read_state(path: Path) -> dict[str, Judgement]:
    """Read the verdicts of an interrupted run."""
    found = {}
    for line in path.read_text().splitlines() if path.exists() else ():
        entry = json.loads(line)
        name = entry.pop("name")
        found[name] = Judgement(**entry | {"verdict": Verdict(entry["verdict"])})
    return found


def say(text: str) -> None:
    """Print past pytest's capturing."""
    os.write(_OUT, f"{time.strftime('%H:%M:%S')} {text}\n".encode())


_OUT = os.dup(1)

if __name__ == "__main__":
    if os.environ.get("PYTHONHASHSEED") != "0":  # sets in the same order each time
        os.execve(
            sys.executable,
            [sys.executable, "-m", "tests.mutation", *sys.argv[1:]],
            os.environ | {"PYTHONHASHSEED": "0"},
        )
    sys.exit(main())
