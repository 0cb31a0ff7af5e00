"""Soak of the random suites with larger dials.

The results are in ``docs/soak.md``.

    make soak                      about 18 hours on 2 cores
    make soak HOURS=2              dials in proportion, each suite at least as in `make test`
    make soak ONLY="log fuzz"      some suites
    make soak RESTART=1            from the beginning

The soak has no tests of its own. Its suites are the tests of ``make test``, with the dials that ``tests/conftest.py``
documents. A suite runs in portions, each with other random examples. The result of a portion is added to
``build/soak.json``. On the same commit of the code, an interrupted soak resumes with the next portion. On another
commit, or with files that differ from it, the soak starts again. A failed suite is recorded as failed, and the
exit code is 1.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import subprocess
import sys
import time
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory

ROOT = Path(__file__).resolve().parents[1]
REPORT = ROOT / "docs" / "soak.md"
STATE = ROOT / "build" / "soak.json"
CODE = (".", ":!docs", ":!benchmarks", ":!*.md")
"""The files whose changes start a soak again, as paths of Git."""
HOURS = 18.0
LOCAL_CHANGES = " (with local changes)"
PORTIONS = 20
"""The maximum number of pytest runs of a suite. An interruption loses one of them."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Suite:
    """A group of tests with larger dials. ``dials`` and ``repeats`` are for ``HOURS``; ``floor`` is what ``make test``
    runs.

    ``portion`` is the minimum number of rounds of a run. It is large if a run has a high fixed cost. With ``whole`` the
    dial is no number of rounds, so the suite runs in one portion. ``busy_loops`` is the number of processes beside the
    tests that use the CPU all the time, as on a slow machine.
    """

    name: str
    what: str
    arguments: Sequence[str]
    dials: dict[str, int] = field(default_factory=dict)
    floor: int = 1
    repeats: int = 1
    portion: int = 1
    whole: bool = False
    busy_loops: int = 0


SUITES = (
    Suite(
        name="demo",
        what="the demo, killed in each of its steps: rounds",
        arguments=["tests/integration/test_demo.py"],
        dials={"DEMO_KILL_ROUNDS": 60},
        floor=2,
    ),
    Suite(
        name="log",
        what="a log, killed during appends, reopened and compared: rounds",
        arguments=["tests/integration/test_log_crash.py"],
        dials={"LOG_KILL_ROUNDS": 2000},
        floor=20,
    ),
    Suite(
        name="disk",
        what="logs on a simulated disk, with power failures and kills at every step: rounds",
        arguments=["tests/simulation/test_log_crashes.py"],
        dials={"LOG_CRASH_ROUNDS": 2500},
        floor=15,
    ),
    Suite(
        name="coordinators",
        what="offsets, transactions and share groups on the same simulated disk: rounds",
        arguments=["tests/simulation/test_coordinator_crashes.py"],
        dials={"COORDINATOR_CRASH_ROUNDS": 1500},
        floor=10,
    ),
    Suite(
        name="bits",
        what="flipped bits in any file of a log: rounds",
        arguments=["tests/simulation/test_bit_flips.py"],
        dials={"LOG_FLIP_ROUNDS": 100_000},
        floor=300,
    ),
    Suite(
        name="requests",
        what="damaged requests of Kafka's hot calls: cases for each",
        arguments=["tests/fuzz/test_kafka_requests.py", "-o", "timeout=7200"],
        dials={"FUZZ_CASES": 1_000_000},
        floor=1500,
    ),
    Suite(
        name="fuzz",
        what="every decoder of records and files with damaged input: cases for each",
        arguments=["tests/fuzz", "--ignore=tests/fuzz/test_kafka_requests.py", "-o", "timeout=7200"],
        dials={"FUZZ_CASES": 1_000_000},
        floor=1500,
    ),
    Suite(
        name="broker",
        what="a broker, killed during creations, deletions and writes: rounds",
        arguments=["tests/integration/test_broker_process.py", "-k", "kill_9"],
        dials={"BROKER_KILL_ROUNDS": 400},
        floor=4,
    ),
    Suite(
        name="groups",
        what="groups and share groups with a killed broker: rounds of each",
        arguments=["tests/integration/test_broker_groups_crash.py"],
        dials={"BROKER_KILL_ROUNDS": 200},
        floor=4,
    ),
    Suite(
        name="histories",
        what="clients and broker, killed at work; the clients' histories are checked for anomalies: rounds",
        arguments=["tests/histories/test_histories.py"],
        dials={"HISTORY_KILL_ROUNDS": 200},
        floor=10,
    ),
    Suite(
        name="faults",
        what="a cluster under load: killed, stopped, cut-off brokers, full disks; clients' histories checked: faults",
        arguments=["tests/histories/test_faults.py"],
        dials={"FAULT_ROUNDS": 150},
        floor=3,
    ),
    Suite(
        name="kafka-faults",
        what="the same with Kafka's verifiable producer and consumers and its transactional copier: faults",
        arguments=["tests/histories/test_kafka_faults.py"],
        dials={"KAFKA_FAULT_ROUNDS": 100},
        floor=2,
        portion=10,
    ),
    Suite(
        name="clusters",
        what="simulated clusters, with all kinds of faults: seeds",
        arguments=["tests/simulation/cluster", "-k", "promises", "-o", "timeout=20000"],
        dials={"CLUSTER_SIM_SEEDS": 10_000},
        floor=300,
    ),
    Suite(
        name="replicas",
        what="killed and stopped brokers and leader elections under load, replicas compared byte for byte: rounds",
        arguments=["tests/integration/test_replication_kills.py"],
        dials={"REPLICA_KILL_ROUNDS": 100},
        floor=2,
    ),
    Suite(
        name="security",
        what="certificates, authorities and ACLs that change while clients work: rounds",
        arguments=["tests/integration/test_security_changes.py", "-k", "authorized_client"],
        dials={"ROTATION_ROUNDS": 100},
        floor=5,
        portion=20,
    ),
    Suite(
        name="sink",
        what="topic to topic with Spark, with kills of driver, executors, workers and broker: rounds",
        arguments=["tests/integration/test_spark_sink_kills.py", "-k", "random_moments"],
        dials={"SINK_KILL_ROUNDS": 100},
        floor=3,
    ),
    Suite(
        name="delta",
        what="topic to Delta by append and merge, with kills of driver, executors, workers and broker: rounds of each",
        arguments=["tests/integration/test_delta_kills.py"],
        dials={"DELTA_KILL_ROUNDS": 100},
        floor=2,
    ),
    Suite(
        name="streams",
        what="a topology with two repartitions, with kills of driver, workers and broker: rounds",
        arguments=["tests/integration/test_streams_kills.py"],
        dials={"STREAMS_KILL_ROUNDS": 100},
        floor=1,
        portion=20,
    ),
    Suite(
        name="rebuild",
        what="`millrace streams rebuild`, killed and restarted until it is complete: kills",
        arguments=["tests/integration/test_streams_upgrades.py", "-k", "killed"],
        dials={"REBUILD_KILL_ROUNDS": 20},
        floor=1,
    ),
    Suite(
        name="state",
        what="state of many keys in bounded memory, with every value checked: hundred thousands of keys",
        arguments=["tests/integration/test_streams_large_state.py"],
        dials={"STATE_ROUNDS": 100},
        floor=2,
        whole=True,
    ),
    Suite(
        name="cases",
        what="the cases of Kafka Streams on Spark, by stream and by batch: runners of each",
        arguments=["tests/integration/test_streams_conformance.py"],
        dials={"SPARK_CASE_RUNNERS": 2},
        whole=True,
    ),
    Suite(
        name="topologies",
        what="random topologies, by stream, batch and test driver: topologies",
        arguments=["tests/integration/test_streams_generated.py"],
        dials={"GENERATED_TOPOLOGIES": 1000},
        floor=16,
    ),
    Suite(
        name="kafka-streams",
        what="random records in fixed and random topologies here and in Kafka Streams, with equal results: scripts",
        arguments=["tests/integration/test_kafka_streams.py"],
        dials={"KAFKA_STREAMS_SCRIPTS": 100},
        portion=10,
    ),
    Suite(
        name="dist",
        what="wheel and sdist installed by pip with all dependencies into clean environments: installations of each",
        arguments=["tests/integration/test_distribution.py"],
        dials={"CLEAN_INSTALLS": 1},
        whole=True,
    ),
    Suite(
        name="site",
        what="each page of the documentation site in Chromium, at 390 and 1440 pixels: widths",
        arguments=["tests/integration/test_site_in_a_browser.py"],
        dials={"SITE_WIDTHS": 2},
        whole=True,
    ),
    Suite(
        name="properties",
        what="all unit tests, with new random examples each time: runs",
        arguments=["tests/unit", "--hypothesis-profile=soak", "-o", "timeout=3600"],
        repeats=6,
    ),
    Suite(
        name="beside",
        what="all tests in random order, beside two busy loops: runs",
        arguments=["--dist=loadfile", "--no-loadscope-reorder"],
        repeats=5,
        busy_loops=2,
    ),
)


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """The result of a suite's rounds so far. ``tests`` counts each test once, however often it ran."""

    rounds: int = 0
    tests: int = 0
    failures: tuple[str, ...] = ()
    seconds: float = 0.0

    def plus(self, rounds: int, tests: int, failures: Sequence[str], seconds: float) -> Outcome:
        """Add the result of a portion."""
        return Outcome(
            rounds=self.rounds + rounds,
            tests=max(self.tests, tests),
            failures=tuple(dict.fromkeys([*self.failures, *failures])),
            seconds=self.seconds + seconds,
        )


class Progress:
    """The results of the suites on one commit.

    The results are in a file that outlives the process.
    """

    def __init__(self, path: Path, commit: str, *, restart: bool) -> None:
        self._path = path
        self._commit = commit
        self._outcomes: dict[str, Outcome] = {}
        if path.exists() and not restart and LOCAL_CHANGES not in commit:
            kept = json.loads(path.read_text("utf-8"))
            if kept["commit"] == commit:
                self._outcomes = {
                    name: Outcome(**{**outcome, "failures": tuple(outcome["failures"])})
                    for name, outcome in kept["suites"].items()
                }

    def of(self, suite: Suite) -> Outcome:
        """Return the results of a suite so far."""
        return self._outcomes.get(suite.name, Outcome())

    def note(self, suite: Suite, outcome: Outcome) -> None:
        """Store a suite's results, so that they survive an interruption."""
        self._outcomes[suite.name] = outcome
        kept = {"commit": self._commit, "suites": {name: asdict(each) for name, each in self._outcomes.items()}}
        self._path.parent.mkdir(parents=True, exist_ok=True)
        fresh = self._path.with_suffix(".new")
        fresh.write_text(json.dumps(kept, indent=1), encoding="utf-8")
        fresh.replace(self._path)


def wanted_rounds(suite: Suite, scale: float) -> int:
    """Return the rounds of a suite at ``scale`` times its soak value."""
    value = next(iter(suite.dials.values()), suite.repeats)
    return max(suite.floor, round(value * scale))


def next_portion(suite: Suite, wanted: int, done: int) -> int:
    """Return the rounds of the next portion, or 0 if all are done."""
    if suite.whole:
        return wanted if done < wanted else 0
    portion = max(suite.floor, suite.portion, math.ceil(wanted / PORTIONS))
    return max(0, min(portion, wanted - done))


def run_portion(suite: Suite, rounds: int, outcome: Outcome) -> Outcome:
    """Run so many more rounds of a suite."""
    started = time.monotonic()
    with busy_loops(suite.busy_loops):
        if suite.dials:
            tests, failures = run_pytest(suite.arguments, dict.fromkeys(suite.dials, rounds))
        else:
            tests, failures = 0, []
            for _ in range(rounds):
                ran, failed = run_pytest(suite.arguments, {})
                tests, failures = max(tests, ran), failures + failed
    return outcome.plus(rounds, tests, failures, time.monotonic() - started)


@contextmanager
def busy_loops(number: int) -> Iterator[None]:
    """Run so many processes that use the CPU all the time."""
    loops = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(number)]
    try:
        yield
    finally:
        for each in loops:
            each.kill()
            each.wait()


def run_pytest(arguments: Sequence[str], dials: dict[str, int]) -> tuple[int, list[str]]:
    """Run pytest, and return the number of tests and the failed ones."""
    with TemporaryDirectory() as directory:
        results = Path(directory) / "results.xml"
        # Two processes run at once. A test that kills waits much, so a suite of two such tests takes half the time.
        command = [sys.executable, "-m", "pytest", "-q", "--numprocesses=2", f"--junitxml={results}", *arguments]
        environment = os.environ | {name: str(value) for name, value in dials.items()}
        status = subprocess.run(command, cwd=ROOT, env=environment, check=False).returncode
        if not results.exists():
            return 0, [f"pytest ended with exit code {status}"]
        cases = list(ElementTree.parse(results).iter("testcase"))
    bad = [case for case in cases if case.find("failure") is not None or case.find("error") is not None]
    return len(cases), [f"{case.get('classname')}::{case.get('name')}" for case in bad]


def write_report(outcomes: Mapping[Suite, Outcome], date: datetime, commit: str) -> None:
    """Write ``docs/soak.md`` with each suite's last run. Suites that did not run now keep their rows."""
    rows = kept_rows()
    for suite, outcome in outcomes.items():
        rows[suite.name] = (
            f"| {suite.name} | {suite.what} | {outcome.rounds:,} | {outcome.tests:,} "
            f"| {len(outcome.failures)} | {outcome.seconds / 60:.1f} | {date:%Y-%m-%d} {commit} |"
        )
    lines = [
        "# The last soak",
        "",
        "`make soak` (`tests/soak.py`) writes this page. It runs the tests of `make test` that kill processes or draw",
        "random examples, with larger dials (`tests/conftest.py` documents them). The table has the last run of each",
        "suite. A suite runs in portions. After an interruption, a restart on the same commit of the code continues",
        "after the last complete portion, and rounds, minutes and failures add up. `make soak RESTART=1` starts over.",
        "",
        f"* machine: {os.cpu_count()} cores, {memory_gb():.0f} GB, {platform.system()} {platform.machine()}, "
        f"Python {platform.python_version()}",
        "",
        "| suite | contents | rounds | tests | failed | minutes | commit |",
        "|---|---|---:|---:|---:|---:|---|",
        *(rows[suite.name] for suite in SUITES if suite.name in rows),
    ]
    failures = [failure for outcome in outcomes.values() for failure in outcome.failures]
    if failures:
        lines += ["", "Failed:", "", *(f"* `{failure}`" for failure in failures)]
    REPORT.write_text("\n".join(lines) + "\n", encoding="utf-8")


def kept_rows() -> dict[str, str]:
    """Return the rows of the existing report by suite."""
    text = REPORT.read_text("utf-8") if REPORT.exists() else ""
    return {line.split("|")[1].strip(): line for line in text.splitlines() if line.startswith("| ")}


def commit() -> str:
    """Return the last commit of the code, and whether files differ from it.

    Pages and benchmarks do not count. A commit of results, for example, does not start a soak again.
    """
    found = subprocess.run(["git", "log", "-1", "--format=%h", "--", *CODE], cwd=ROOT, capture_output=True, text=True)
    status = ["git", "status", "--porcelain", "-uno", "--", *CODE]
    changed = subprocess.run(status, cwd=ROOT, capture_output=True, text=True)
    return (found.stdout.strip() or "unknown") + (LOCAL_CHANGES if changed.stdout.strip() else "")


def memory_gb() -> float:
    """Return the memory of the machine in GB."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30


def main() -> int:
    """Run the soak, and return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hours", type=float, default=HOURS, help="about how long, on 2 cores (default: %(default)s)")
    parser.add_argument("--only", nargs="+", choices=[suite.name for suite in SUITES], help="run these suites")
    parser.add_argument("--restart", action="store_true", help="forget the rounds that were run on this commit")
    arguments = parser.parse_args()
    if arguments.hours <= 0:
        parser.error("--hours must be positive")
    chosen = [suite for suite in SUITES if not arguments.only or suite.name in arguments.only]
    scale = arguments.hours / HOURS
    ran_on = commit()
    progress = Progress(STATE, ran_on, restart=arguments.restart)
    outcomes = {}
    for suite in chosen:
        wanted = wanted_rounds(suite, scale)
        outcomes[suite] = progress.of(suite)
        while (rounds := next_portion(suite, wanted, outcomes[suite].rounds)) > 0:
            outcomes[suite] = run_portion(suite, rounds, outcomes[suite])
            progress.note(suite, outcomes[suite])
            # Progress is stored after each portion, so an interruption loses only the present one.
            write_report(outcomes, datetime.now(UTC), ran_on)
    print(REPORT.read_text("utf-8"))
    return 1 if any(outcome.failures for outcome in outcomes.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
