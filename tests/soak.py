"""The soak: the suites that search at random, with their dials turned up, and what came of it in ``docs/soak.md``.

  make soak                      about four hours on 2 cores
  make soak HOURS=0.5            turned up in proportion, each suite at least as in `make test`
  make soak ONLY="log fuzz"      some suites

It runs nothing of its own: suites are the tests of ``make test``, by the dials that ``tests/conftest.py`` documents.
Every figure is of this run; a suite that failed is written down as failed, and the exit code is 1.
"""

from __future__ import annotations

import argparse
import os
import platform
import subprocess
import sys
import time
import xml.etree.ElementTree as ElementTree
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory

ROOT = Path(__file__).resolve().parents[1]
REPORT = ROOT / "docs" / "soak.md"
HOURS = 4.0


@dataclass(frozen=True, kw_only=True)
class Suite:
    """Tests to turn up. ``dials`` and ``repeats`` are for ``HOURS``; ``floor`` is what ``make test`` runs."""

    name: str
    what: str
    arguments: Sequence[str]
    dials: dict[str, int] = field(default_factory=dict)
    floor: int = 1
    repeats: int = 1


SUITES = (
    Suite(
        name="demo",
        what="the demo killed in all of its steps: rounds",
        arguments=["tests/integration/test_demo.py"],
        dials={"DEMO_KILL_ROUNDS": 60},
        floor=2,
    ),
    Suite(
        name="log",
        what="a log killed while it appends, reopened, compared: rounds",
        arguments=["tests/integration/test_log_crash.py"],
        dials={"LOG_KILL_ROUNDS": 2000},
        floor=20,
    ),
    Suite(
        name="disk",
        what="logs on a disk that loses power or process at every step: rounds",
        arguments=["tests/simulation/test_log_crashes.py"],
        dials={"LOG_CRASH_ROUNDS": 2500},
        floor=15,
    ),
    Suite(
        name="coordinators",
        what="offsets, transactions, share groups on such a disk: rounds",
        arguments=["tests/simulation/test_coordinator_crashes.py"],
        dials={"COORDINATOR_CRASH_ROUNDS": 1500},
        floor=10,
    ),
    Suite(
        name="bits",
        what="bits turned over in any file of a log: rounds",
        arguments=["tests/simulation/test_bit_flips.py"],
        dials={"LOG_FLIP_ROUNDS": 100_000},
        floor=300,
    ),
    Suite(
        name="fuzz",
        what="every decoder given damaged input: cases for each",
        arguments=["tests/fuzz", "-o", "timeout=7200"],
        dials={"FUZZ_CASES": 1_000_000},
        floor=1500,
    ),
    Suite(
        name="broker",
        what="a broker killed while it creates, deletes, writes: rounds",
        arguments=["tests/integration/test_broker_process.py", "-k", "kill_9"],
        dials={"BROKER_KILL_ROUNDS": 400},
        floor=4,
    ),
    Suite(
        name="groups",
        what="groups and share groups whose broker is killed while they work: rounds of each",
        arguments=["tests/integration/test_broker_groups_crash.py"],
        dials={"BROKER_KILL_ROUNDS": 200},
        floor=4,
    ),
    Suite(
        name="histories",
        what="clients and broker killed while they work, what clients saw checked for anomalies: rounds",
        arguments=["tests/histories/test_histories.py"],
        dials={"HISTORY_KILL_ROUNDS": 600},
        floor=10,
    ),
    Suite(
        name="faults",
        what="a cluster whose brokers die, stop, are cut off and run out of disk under clients; what these saw: faults",
        arguments=["tests/histories/test_faults.py"],
        dials={"FAULT_ROUNDS": 150},
        floor=3,
    ),
    Suite(
        name="clusters",
        what="whole clusters simulated, with everything that can fail failing: seeds",
        arguments=["tests/simulation/cluster", "-o", "timeout=20000"],
        dials={"CLUSTER_SIM_SEEDS": 10_000},
        floor=300,
    ),
    Suite(
        name="replicas",
        what="brokers killed, stopped and elected under producers, replicas compared byte for byte: rounds",
        arguments=["tests/integration/test_replication_kills.py"],
        dials={"REPLICA_KILL_ROUNDS": 100},
        floor=2,
    ),
    Suite(
        name="sink",
        what="topic to topic with Spark, whose driver, executors, workers and broker are killed: rounds",
        arguments=["tests/integration/test_spark_sink_kills.py", "-k", "random_moments"],
        dials={"SINK_KILL_ROUNDS": 100},
        floor=3,
    ),
    Suite(
        name="delta",
        what="topic to Delta, added and merged; driver, executors, workers and broker are killed: rounds of each",
        arguments=["tests/integration/test_delta_kills.py"],
        dials={"DELTA_KILL_ROUNDS": 100},
        floor=2,
    ),
    Suite(
        name="streams",
        what="a topology whose records move twice; driver, workers and broker are killed: rounds",
        arguments=["tests/integration/test_streams_kills.py"],
        dials={"STREAMS_KILL_ROUNDS": 30},
        floor=1,
    ),
    Suite(
        name="rebuild",
        what="millrace streams rebuild, killed and started again until it is done: kills",
        arguments=["tests/integration/test_streams_upgrades.py", "-k", "killed"],
        dials={"REBUILD_KILL_ROUNDS": 20},
        floor=1,
    ),
    Suite(
        name="state",
        what="state of very many keys in bounded memory, every value right: hundred thousands of keys",
        arguments=["tests/integration/test_streams_large_state.py"],
        dials={"STATE_ROUNDS": 100},
        floor=2,
    ),
    Suite(
        name="cases",
        what="the cases of Kafka Streams on Spark, by stream and by batch: runners of each",
        arguments=["tests/integration/test_streams_conformance.py"],
        dials={"SPARK_CASE_RUNNERS": 2},
    ),
    Suite(
        name="topologies",
        what="topologies made at random, by stream, batch and test driver: topologies",
        arguments=["tests/integration/test_streams_generated.py"],
        dials={"GENERATED_TOPOLOGIES": 1000},
        floor=16,
    ),
    Suite(
        name="properties",
        what="all unit tests, their examples drawn anew each time: runs",
        arguments=["tests/unit", "--hypothesis-profile=soak", "-o", "timeout=3600"],
        repeats=6,
    ),
)


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What came of a suite."""

    suite: Suite
    rounds: int
    tests: int
    failures: list[str]
    seconds: float


def run_suite(suite: Suite, scale: float) -> Outcome:
    """Run a suite with its dials at ``scale`` times their soak value."""
    dials = {name: max(suite.floor, round(value * scale)) for name, value in suite.dials.items()}
    repeats = max(1, round(suite.repeats * scale))
    started, tests, failures = time.monotonic(), 0, []
    for _ in range(repeats):
        ran, failed = run_pytest(suite.arguments, dials)
        tests += ran
        failures += failed
    rounds = next(iter(dials.values()), repeats)
    return Outcome(suite=suite, rounds=rounds, tests=tests, failures=failures, seconds=time.monotonic() - started)


def run_pytest(arguments: Sequence[str], dials: dict[str, int]) -> tuple[int, list[str]]:
    """How many tests ran, and which of them failed."""
    with TemporaryDirectory() as directory:
        results = Path(directory) / "results.xml"
        # Two at once: a test that kills waits for much, and a suite of two such tests takes half the time.
        command = [sys.executable, "-m", "pytest", "-q", "--numprocesses=2", f"--junitxml={results}", *arguments]
        environment = os.environ | {name: str(value) for name, value in dials.items()}
        status = subprocess.run(command, cwd=ROOT, env=environment, check=False).returncode
        if not results.exists():
            return 0, [f"pytest ended with exit code {status}"]
        cases = list(ElementTree.parse(results).iter("testcase"))
    bad = [case for case in cases if case.find("failure") is not None or case.find("error") is not None]
    return len(cases), [f"{case.get('classname')}::{case.get('name')}" for case in bad]


def write_report(outcomes: Sequence[Outcome], date: datetime) -> None:
    """Write ``docs/soak.md``: of each suite its last run, which for those that did not run now is in there."""
    rows = kept_rows()
    for outcome in outcomes:
        rows[outcome.suite.name] = (
            f"| {outcome.suite.name} | {outcome.suite.what} | {outcome.rounds:,} | {outcome.tests:,} "
            f"| {len(outcome.failures)} | {outcome.seconds / 60:.1f} | {date:%Y-%m-%d} {commit()} |"
        )
    lines = [
        "# The last soak",
        "",
        "Written by `make soak` (`tests/soak.py`): the tests of `make test` that kill processes and draw examples at",
        "random, with their dials turned up (`tests/conftest.py` documents them). Of each suite this is the last run.",
        "",
        f"* machine: {os.cpu_count()} cores, {memory_gb():.0f} GB, {platform.system()} {platform.machine()}, "
        f"Python {platform.python_version()}",
        "",
        "| suite | what | rounds | tests | failed | minutes | commit |",
        "|---|---|---:|---:|---:|---:|---|",
        *(rows[suite.name] for suite in SUITES if suite.name in rows),
    ]
    failures = [failure for outcome in outcomes for failure in outcome.failures]
    if failures:
        lines += ["", "Failed:", "", *(f"* `{failure}`" for failure in failures)]
    REPORT.write_text("\n".join(lines) + "\n", encoding="utf-8")


def kept_rows() -> dict[str, str]:
    """The rows of the report that there is, by their suites."""
    text = REPORT.read_text("utf-8") if REPORT.exists() else ""
    return {line.split("|")[1].strip(): line for line in text.splitlines() if line.startswith("| ")}


def commit() -> str:
    """The commit that ran, and whether files differed from it: others than the report, which each suite changes."""
    found = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True)
    status = ["git", "status", "--porcelain", "-uno", "--", ".", f":!{REPORT.relative_to(ROOT)}"]
    changed = subprocess.run(status, cwd=ROOT, capture_output=True, text=True)
    return (found.stdout.strip() or "unknown") + (" (with local changes)" if changed.stdout.strip() else "")


def memory_gb() -> float:
    """Memory of the machine."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30


def main() -> int:
    """Run the soak; gives the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hours", type=float, default=HOURS, help="about how long, on 2 cores (default: %(default)s)")
    parser.add_argument("--only", nargs="+", choices=[suite.name for suite in SUITES], help="run these suites")
    arguments = parser.parse_args()
    if arguments.hours <= 0:
        parser.error("--hours must be positive")
    chosen = [suite for suite in SUITES if not arguments.only or suite.name in arguments.only]
    scale = arguments.hours / HOURS
    date = datetime.now(UTC)
    outcomes = []
    for suite in chosen:
        outcomes.append(run_suite(suite, scale))
        # After each suite: what a soak found is not lost when the next one is interrupted.
        write_report(outcomes, date)
    print(REPORT.read_text("utf-8"))
    return 1 if any(outcome.failures for outcome in outcomes) else 0


if __name__ == "__main__":
    sys.exit(main())
