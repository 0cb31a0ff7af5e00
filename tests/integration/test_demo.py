"""Tests of the demo, killed in any step and run again.

The kill is SIGKILL. The tables have the same rows as without a kill. Each round wants more rows than the one before, so
that every step of every round has work. That work is a batch on top of the state, tables and offsets that the last kill
left. The expected rows come from the data files through pyarrow alone. The tables are read with delta-rs.
"""

from __future__ import annotations

import os
import random
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from millrace.cli.paths import conf_dir
from millrace.clients import Admin
from millrace.errors import InvalidTimestampError
from millrace_broker.testing import EmbeddedBroker
from millrace_streams.demo.datasets import Dataset, read_datasets
from millrace_streams.demo.load import load
from millrace_streams.demo.report import read_delta, sorted_rows
from millrace_streams.demo.view import STARTED

from .waiting import eventually, exit_code, pause, run_to_end, work_of

ROWS = 30_000
RUN_SECONDS_MAX = 600.0

FAILING_CODE = re.compile(rb'^  File "(?![^"]*pyspark/daemon\.py")', re.MULTILINE)
"""Line of a traceback in any file but PySpark's daemon.

When Spark disconnects an idle planning worker, the worker or its daemon writes a traceback with ``BrokenPipeError``. No
setting can replace PySpark's daemon there. Other lines of the log may come between the lines of the traceback.
"""
END_SECONDS_MAX = 60.0
POLL_SECONDS = 0.02
HOUR_US = 3_600_000_000


@dataclass(frozen=True)
class Step:
    """A step of the demo.

    A step has a start, the longest delay of a kill in it, the possible victims and its output.
    """

    starts_with: str
    seconds: float
    victims: tuple[str, ...]
    writes: str | None = None


WITH_SPARK = ("broker", "driver", "group")
STEPS = (
    Step("load", 0.3, ("broker", "group")),
    Step("ingest flights", 4.0, WITH_SPARK, "flights"),
    Step("hourly departures, stream", 8.0, WITH_SPARK, "hourly_departures"),
    Step("hourly departures, backfill", 6.0, WITH_SPARK, "hourly_departures_backfill"),
    # The broker and Spark have ended by then.
    Step("report", 1.0, ("group",)),
)


class Demo:
    """A running demo in a process group of its own. Its output goes to ``demo.out``."""

    def __init__(self, work_dir: Path, rows: int) -> None:
        self._out = work_dir / "demo.out"
        self._printed_before = self._out.stat().st_size if self._out.exists() else 0
        command = [sys.executable, "-m", "millrace.cli.main", "demo", "--work-dir", str(work_dir), "--rows", str(rows)]
        with self._out.open("ab") as out:
            self.process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def printed(self) -> str:
        return self._out.read_bytes()[self._printed_before :].decode()

    def wait_for(self, condition: Callable[[], bool], what: str) -> None:
        """Wait until ``condition`` comes true or the demo has ended."""
        eventually(
            lambda: condition() or self.process.poll() is not None,
            what,
            progress=lambda: (len(self.printed()), work_of(self.process.pid)),
            pause_s=POLL_SECONDS,
        )

    def kill(self, victim: str) -> None:
        """Kill the broker, the driver of Spark (if they run), or all at once."""
        if victim == "group":
            for process in (self.process.pid, *descendants(self.process.pid)):
                kill_one(process)
        else:
            wanted = {"broker": b"\0broker\0", "driver": b"org.apache.spark.deploy.SparkSubmit"}[victim]
            for process in descendants(self.process.pid):
                if wanted in command_line(process):
                    kill_one(process)

    def finish(self) -> str:
        """Wait for the successful end of the demo, and return its output."""
        try:
            status = exit_code(self.process)
        finally:
            self.kill("group")
        assert status == 0, self.printed()[-4000:]
        return self.printed()


def kill_one(process: int) -> None:
    try:
        os.kill(process, signal.SIGKILL)
    except ProcessLookupError:
        return


def command_line(process: int) -> bytes:
    try:
        return Path(f"/proc/{process}/cmdline").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return b""


def descendants(root: int) -> list[int]:
    """Return the process ids below ``root``, from /proc."""
    children: dict[int, list[int]] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rsplit(")", 1)[1].split()
        except (FileNotFoundError, ProcessLookupError):
            continue
        children.setdefault(int(fields[1]), []).append(int(stat.parent.name))
    found, queue = [], [root]
    while queue:
        below = children.get(queue.pop(), [])
        found += below
        queue += below
    return found


def run_and_kill(work_dir: Path, rows: int, step: Step, victim: str, chance: random.Random) -> None:
    """Run the demo into ``step``, kill ``victim`` at some moment of it, and wait for its end."""
    demo = Demo(work_dir, rows)
    try:
        demo.wait_for(lambda: f"{STARTED} {step.starts_with}" in demo.printed(), f"step {step.starts_with}")
        assert demo.process.poll() is None, demo.printed()[-4000:]
        if step.writes is not None and chance.random() < 0.5:
            # The kill comes at the commit of the table or right after it, before Spark has logged the batch as done.
            versions = work_dir / "tables" / step.writes / "_delta_log"
            before = len(list(versions.glob("*.json")))
            demo.wait_for(lambda: len(list(versions.glob("*.json"))) > before, "a commit of the table")
            delay = chance.uniform(0, 0.5)
        else:
            delay = chance.uniform(0, step.seconds)
        pause(delay)
        demo.kill(victim)
        if victim != "group" and exit_code(demo.process) != 0:
            # Without its broker or its driver the demo fails with a message that names the cause.
            assert demo.process.returncode == 1, demo.printed()[-4000:]
            says = ("the broker has stopped", "Spark failed")
            assert any(text in demo.printed() for text in says), demo.printed()[-4000:]
    finally:
        demo.kill("group")
        demo.process.wait()


def expected_departures(flights: Dataset) -> pa.Table:
    flown = flights.table.filter(pc.is_valid(flights.table["dep_delay"]))
    start = pc.multiply(pc.divide(pc.cast(flown["time_hour"], pa.int64()), HOUR_US), HOUR_US)
    hours = pa.table({"origin": flown["origin"], "start": start, "delay": flown["dep_delay"]})
    grouped = hours.group_by(["origin", "start"]).aggregate([("delay", "count"), ("delay", "mean")])
    stamp = pa.timestamp("us", tz="UTC")
    return pa.table(
        {
            "origin": grouped["origin"],
            "window_start": pc.cast(grouped["start"], stamp),
            "window_end": pc.cast(pc.add(grouped["start"], HOUR_US), stamp),
            "departures": grouped["delay_count"],
            "mean_delay": grouped["delay_mean"],
        }
    )


def assert_same_rows(found: pa.Table, expected: pa.Table) -> None:
    found, expected = sorted_rows(found), sorted_rows(expected)
    assert found.num_rows == expected.num_rows
    assert found.cast(expected.schema).equals(expected)


def assert_tables_are_right(work_dir: Path, datasets: list[Dataset]) -> None:
    tables = work_dir / "tables"
    for dataset in datasets:
        assert_same_rows(read_delta(tables / dataset.topic), dataset.table)
    expected = expected_departures(datasets[0])
    for name in ("hourly_departures", "hourly_departures_backfill"):
        assert_same_rows(read_delta(tables / name), expected)
    assert (work_dir / "hourly_departures.png").stat().st_size > 10_000


def assert_the_next_commands_run(printed: str) -> None:
    """Run the commands that the demo shows at its end. The last one starts a broker, which ends when its input does."""
    _, _, shown = printed.partition("Try next")
    commands = [line.strip() for line in shown.splitlines() if line.startswith("  millrace ")]
    assert len(commands) == 3, shown
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
    for command in (*commands[:2], f"{commands[2]} --listen 127.0.0.1:0 --until-input-ends"):
        done = run_to_end(["bash", "-c", command], input="", env=environment)
        assert done.returncode == 0, command + done.stdout + done.stderr
        assert done.stdout, command


def kills(rounds: int, chance: random.Random) -> list[tuple[Step, str]]:
    """Return the kills, for each step in turn.

    Each kind of victim of the steps with Spark comes in a random order.

    If there are fewer rounds than steps, the kills are some random steps and the last one.
    """
    plan: list[tuple[Step, str]] = []
    chosen = sorted(chance.sample(range(len(STEPS) - 1), min(rounds, len(STEPS)) - 1))
    while len(plan) < rounds:
        order = list(chance.sample(WITH_SPARK, len(WITH_SPARK)))
        for step in (*(STEPS[number] for number in chosen), STEPS[-1]):
            plan.append((step, order.pop() if step.victims == WITH_SPARK else chance.choice(step.victims)))
    return plan[:rounds]


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.dial("DEMO_KILL_ROUNDS", seconds=300)
def test_a_demo_that_is_killed_and_run_again_gives_the_same_tables(tmp_path: Path, rounds: int) -> None:
    seed = int(os.environ.get("DEMO_KILL_SEED") or random.SystemRandom().randrange(10**9))
    print(f"DEMO_KILL_SEED={seed}")
    chance = random.Random(seed)
    for number, (step, victim) in enumerate(kills(rounds, chance), 1):
        print(f"round {number}: kill the {victim} in {step.starts_with}", flush=True)
        run_and_kill(tmp_path, ROWS * number // rounds, step, victim, chance)
    logged_before = {log.name: log.stat().st_size for log in (tmp_path / "logs").glob("spark.log")}
    printed = Demo(tmp_path, ROWS).finish()
    assert "continues where the last run ended" in printed
    assert_tables_are_right(tmp_path, read_datasets(conf_dir(), ROWS))
    assert_the_next_commands_run(printed)
    for name, size in logged_before.items():
        written = (tmp_path / "logs" / name).read_bytes()[size:]
        assert not FAILING_CODE.search(written), f"{name} of a run without a fault: {written.decode()}"
    if rounds <= len(STEPS):
        # The last round was killed in its report. All rows had been processed by then, and none was processed again.
        assert printed.count("nothing new") >= 2 * 5, printed


def test_the_load_fails_if_the_broker_refuses_its_rows(admin: Admin, module_broker: EmbeddedBroker) -> None:
    old = pa.table({"origin": ["JFK"], "time_hour": pa.array([0], pa.timestamp("us", "UTC"))})
    admin.create_topic(
        "old_flights", partitions=1, schema=old.schema, configs={"message.timestamp.before.max.ms": "3600000"}
    )
    told: list[int] = []
    with pytest.raises(InvalidTimestampError, match=r"message\.timestamp\.before\.max\.ms"):
        load(
            module_broker.bootstrap_servers,
            Dataset(topic="old_flights", schema_file=Path("unused"), table=old),
            told.append,
        )
    assert told == [0]
