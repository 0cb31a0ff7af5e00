"""The demo, killed with SIGKILL at random moments and run again: the tables come out the same, row for row.

The expected rows come from the data files through pyarrow alone; the tables are read with delta-rs.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from millrace.cli.paths import conf_dir
from millrace_streams.demo.datasets import Dataset, read_datasets
from millrace_streams.demo.report import read_delta, sorted_rows

ROWS = 30_000
ROUNDS = int(os.environ.get("DEMO_KILL_ROUNDS", "5"))
RUN_SECONDS_MAX = 300.0
HOUR_US = 3_600_000_000


def start_demo(work_dir: Path) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "millrace.cli.main", "demo", "--work-dir", str(work_dir), "--rows", str(ROWS)]
    with (work_dir / "demo.out").open("ab") as out:
        return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT)


def run_demo(work_dir: Path) -> float:
    started = time.monotonic()
    process = start_demo(work_dir)
    try:
        status = process.wait(RUN_SECONDS_MAX)
    finally:
        process.kill()
    assert status == 0, (work_dir / "demo.out").read_text()[-4000:]
    return time.monotonic() - started


def descendants(root: int) -> list[int]:
    """Process ids below ``root``, from /proc."""
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


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.timeout(1500 + 120 * ROUNDS)
def test_killed_at_random_moments_and_run_again_the_tables_are_the_same(tmp_path: Path) -> None:
    seed = int(os.environ.get("DEMO_KILL_SEED", str(random.SystemRandom().randrange(10**9))))
    print(f"DEMO_KILL_SEED={seed}")
    chance = random.Random(seed)
    datasets = read_datasets(conf_dir(), ROWS)
    for _ in range(ROUNDS):
        process = start_demo(tmp_path)
        try:
            process.wait(chance.uniform(1.0, 40.0))
        except subprocess.TimeoutExpired:
            pass
        else:
            assert process.returncode == 0, (tmp_path / "demo.out").read_text()[-4000:]
        victims = [process.pid, *descendants(process.pid)]
        for victim in {chance.choice(victims), process.pid}:
            try:
                os.kill(victim, signal.SIGKILL)
            except ProcessLookupError:
                continue
        process.wait()
    run_demo(tmp_path)
    assert_tables_are_right(tmp_path, datasets)
    run_demo(tmp_path)
    assert_tables_are_right(tmp_path, datasets)
