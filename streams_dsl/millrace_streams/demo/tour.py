"""The demo from end to end: load, ingest, windowed topology, backfill, report.

Every step can be killed at any point and run again: the load resumes from the log's end offsets, the Spark jobs
from their checkpoints, and the backfill overwrites its table in one transaction.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from millrace.clients import Admin
from millrace.errors import MillraceError
from millrace_streams.demo.datasets import Dataset, read_datasets
from millrace_streams.demo.load import ensure_topic, load
from millrace_streams.demo.processes import DemoLock, RunningBroker, running_broker, spark_submit
from millrace_streams.demo.report import (
    Step,
    is_delta_table,
    plot_departures,
    print_departures,
    print_steps,
    read_delta,
    sorted_rows,
)

STARTED: Final = "▸"
"""Begins the line that is printed when a step starts."""


class TablesDifferError(MillraceError):
    """The streamed and the backfilled table are not equal: a defect of millrace, never of the data."""

    code = 1900


@dataclass(frozen=True, slots=True, kw_only=True)
class Tour:
    """What the demo runs with. ``rows`` limits each data set; all of it when None."""

    work_dir: Path
    jobs: Path
    conf: Path
    partitions: int = 4
    rows: int | None = None

    def table(self, name: str) -> Path:
        """Folder of a Delta table."""
        return self.work_dir / "tables" / name

    def checkpoint(self, name: str) -> Path:
        """Folder of a query's checkpoint."""
        return self.work_dir / "checkpoints" / name


def run_tour(tour: Tour, console: Console) -> None:
    """Run the whole demo and print its report.

    Raises ``EnvironmentProblemError`` when a process does not start or fails, ``TablesDifferError`` when the streamed
    and the backfilled table differ.
    """
    continued = (tour.work_dir / "broker").exists()
    (tour.work_dir / "logs").mkdir(parents=True, exist_ok=True)
    lock = DemoLock(tour.work_dir)
    if continued:
        console.print(
            f"{tour.work_dir} is there already: continuing where the last run ended, nothing is written twice",
            soft_wrap=True,
        )
    datasets = read_datasets(tour.conf, tour.rows)
    with running_broker(tour.work_dir, lock) as broker:
        console.print(f"Broker on [bold]{broker.bootstrap_servers}[/], data in {tour.work_dir}", soft_wrap=True)
        steps = _load_all(tour, datasets, broker.bootstrap_servers, console)
        for job in _jobs(tour, datasets):
            steps.append(_run_job(tour, job, broker, lock, console))
    _report(tour, steps, console)


def _load_all(tour: Tour, datasets: list[Dataset], bootstrap_servers: str, console: Console) -> list[Step]:
    """Load what is missing. The progress bars begin with the rows that the topics hold already."""
    console.print(f"{STARTED} load: {', '.join(dataset.topic for dataset in datasets)}")
    with Admin({"bootstrap.servers": bootstrap_servers}) as admin:
        for dataset in datasets:
            ensure_topic(admin, dataset, tour.partitions)
    steps = []
    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()
    with Progress(*columns, console=console) as progress:
        for dataset in datasets:
            task = progress.add_task(f"Load {dataset.topic}", total=dataset.table.num_rows)

            def advance(rows: int, task: int = task) -> None:
                progress.advance(task, rows)  # type: ignore[arg-type]

            started = time.monotonic()
            rows = load(bootstrap_servers, dataset, advance)
            steps.append(Step(name=f"load {dataset.topic}", rows=rows, seconds=time.monotonic() - started))
    for dataset, step in zip(datasets, steps, strict=True):
        held = dataset.table.num_rows - step.rows
        found = f", {held:,} were there" if held else ""
        loaded = f"{step.rows:,} rows" if step.rows else "nothing new"
        console.print(f"[green]✓[/] {step.name}: {loaded}{found}")
    return steps


@dataclass(frozen=True, slots=True, kw_only=True)
class _Job:
    """A spark-submit run, and how many rows its table accounts for. ``anew``: it writes the whole table every time."""

    name: str
    script: str
    arguments: list[str]
    rows_of: Callable[[], int]
    anew: bool = False


def _jobs(tour: Tour, datasets: list[Dataset]) -> list[_Job]:
    def into(table: str) -> list[str]:
        return ["--table", str(tour.table(table)), "--checkpoint", str(tour.checkpoint(table))]

    ingests = [
        _Job(
            name=f"ingest {dataset.topic}",
            script="ingest_to_delta.py",
            arguments=["--topic", dataset.topic, *into(dataset.topic)],
            rows_of=partial(_row_count, tour.table(dataset.topic)),
        )
        for dataset in datasets
    ]
    stream = _Job(
        name="hourly departures, stream",
        script="hourly_departures.py",
        arguments=into("hourly_departures"),
        rows_of=partial(_departures, tour.table("hourly_departures")),
    )
    backfilled = tour.table("hourly_departures_backfill")
    backfill = _Job(
        name="hourly departures, backfill",
        script="backfill.py",
        arguments=["--topology", str(tour.jobs / "hourly_departures.py"), "--table", str(backfilled)],
        rows_of=partial(_departures, backfilled),
        anew=True,
    )
    return [*ingests, stream, backfill]


def _run_job(tour: Tour, job: _Job, broker: RunningBroker, lock: DemoLock, console: Console) -> Step:
    before = 0 if job.anew else job.rows_of()
    log_path = tour.work_dir / "logs" / f"{job.name.replace(', ', '-').replace(' ', '-')}.log"
    console.print(f"{STARTED} {job.name}: spark-submit jobs/{job.script}, log in {log_path}", soft_wrap=True)
    started = time.monotonic()
    with console.status(f"{job.name} ..."):
        arguments = ["--bootstrap-servers", broker.bootstrap_servers, *job.arguments]
        script = tour.jobs / job.script
        spark_submit(script, arguments, broker=broker, work_dir=tour.work_dir, log_path=log_path, lock=lock)
    step = Step(name=job.name, rows=job.rows_of() - before, seconds=time.monotonic() - started)
    handled = f"{step.rows:,} rows" if step.rows else "nothing new"
    found = f", {before:,} were there" if before else ""
    console.print(f"[green]✓[/] {job.name}: {handled}{found}, in {step.seconds:.1f} s")
    return step


def _row_count(path: Path) -> int:
    return read_delta(path).num_rows if is_delta_table(path) else 0


def _departures(path: Path) -> int:
    """Flights that went into a windowed table."""
    return sum(read_delta(path)["departures"].to_pylist()) if is_delta_table(path) else 0


def _report(tour: Tour, steps: list[Step], console: Console) -> None:
    console.print(f"{STARTED} report")
    streamed = read_delta(tour.table("hourly_departures"))
    backfilled = read_delta(tour.table("hourly_departures_backfill"))
    if not sorted_rows(streamed).equals(sorted_rows(backfilled)):
        raise TablesDifferError(
            f"{tour.table('hourly_departures')} and {tour.table('hourly_departures_backfill')} differ: please report it"
        )
    plot = tour.work_dir / "hourly_departures.png"
    plot_departures(streamed, plot)
    print_departures(console, streamed)
    print_steps(console, steps)
    console.print("The streamed and the backfilled table are equal, row for row.")
    for what, where in (
        ("Delta tables", tour.work_dir / "tables"),
        ("checkpoints", tour.work_dir / "checkpoints"),
        ("segments", tour.work_dir / "broker"),
        ("logs", tour.work_dir / "logs"),
        ("plot", plot),
    ):
        console.print(f"  {what:<13}{where}", soft_wrap=True)
