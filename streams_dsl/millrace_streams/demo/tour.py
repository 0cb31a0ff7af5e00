"""The demo from end to end: load, ingest, windowed topology, backfill, report.

Every step can be killed at any point and run again. The load resumes from the log's end offsets, and the queries from
their checkpoints. The backfill overwrites its table in one transaction.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from millrace.clients import Admin
from millrace.errors import MillraceError
from millrace_streams.demo.datasets import Dataset, read_datasets
from millrace_streams.demo.load import ensure_topic, load
from millrace_streams.demo.processes import DemoLock, RunningBroker, running_broker, running_spark
from millrace_streams.demo.report import (
    plot_departures,
    print_departures,
    print_next_steps,
    print_steps,
    read_delta,
    sorted_rows,
)
from millrace_streams.demo.stages import BACKFILL, SPARK, STREAM, StageEvent, ingest_stage
from millrace_streams.demo.view import StageView


class TablesDifferError(MillraceError):
    """Difference between the streamed and the backfilled table.

    The error is a defect of millrace, never of the data.
    """

    code = 1900


@dataclass(frozen=True, slots=True, kw_only=True)
class Tour:
    """Settings of the demo. ``rows`` limits each data set; None means no limit."""

    work_dir: Path
    jobs: Path
    conf: Path
    partitions: int = 4
    rows: int | None = None

    def table(self, name: str) -> Path:
        """Return the folder of a Delta table."""
        return self.work_dir / "tables" / name


def run_tour(tour: Tour, console: Console) -> None:
    """Run the whole demo and print its report.

    Raises ``EnvironmentProblemError`` if a process does not start or fails, ``TablesDifferError`` if the streamed and
    the backfilled table differ.
    """
    continued = (tour.work_dir / "broker").exists()
    (tour.work_dir / "logs").mkdir(parents=True, exist_ok=True)
    lock = DemoLock(tour.work_dir)
    if continued:
        console.print(
            f"{tour.work_dir} exists: the demo continues where the last run ended and writes nothing twice",
            soft_wrap=True,
        )
    with running_broker(tour.work_dir, lock) as broker:
        console.print(f"Broker on [bold]{broker.bootstrap_servers}[/], data in {tour.work_dir}", soft_wrap=True)
        topology = tour.jobs / "hourly_departures.py"
        topics = ["flights", "weather"]
        with running_spark(tour.work_dir, lock, broker=broker, topology=topology, topics=topics) as spark:
            # Spark starts meanwhile.
            datasets = read_datasets(tour.conf, tour.rows)
            with StageView(console, _stages(datasets)) as view:
                _load_all(tour, datasets, broker, view)
                spark.begin()
                for event in spark.events(broker):
                    view.show(event)
    _report(tour, view.finished, console)


def _stages(datasets: Sequence[Dataset]) -> dict[str, tuple[str, int]]:
    """Return the description of each stage, and its maximum number of rows."""
    loads = {
        f"load {each.topic}": ("Arrow tables into the partitions of a typed topic", each.table.num_rows)
        for each in datasets
    }
    ingests = {
        ingest_stage(each.topic): ("topic into a Delta table, exactly once", each.table.num_rows) for each in datasets
    }
    flights = datasets[0].table.num_rows
    return {
        **loads,
        SPARK: ("the one session of all queries", 0),
        **ingests,
        STREAM: ("departures by airport and hour, as a stream with state", flights),
        BACKFILL: ("the same topology as a batch over the retained records", flights),
    }


def _load_all(tour: Tour, datasets: Sequence[Dataset], broker: RunningBroker, view: StageView) -> None:
    """Load the missing rows. The progress bars start with the rows that the topics already hold."""
    with Admin({"bootstrap.servers": broker.bootstrap_servers}) as admin:
        for dataset in datasets:
            ensure_topic(admin, dataset, tour.partitions)
    for dataset in datasets:
        name, started, held = f"load {dataset.topic}", time.monotonic(), 0

        def show(rows: int, name: str = name, started: float = started) -> None:
            nonlocal held
            held += rows
            view.show(StageEvent(stage=name, rows=held, seconds=time.monotonic() - started))

        view.show(StageEvent(stage=name))
        rows = load(broker.bootstrap_servers, dataset, show)
        view.show(StageEvent(stage=name, rows=rows, seconds=time.monotonic() - started, is_done=True))


def _report(tour: Tour, finished: Sequence[StageEvent], console: Console) -> None:
    console.print("▸ report")
    streamed = read_delta(tour.table("hourly_departures"))
    backfilled = read_delta(tour.table("hourly_departures_backfill"))
    if not sorted_rows(streamed).equals(sorted_rows(backfilled)):
        raise TablesDifferError(
            f"{tour.table('hourly_departures')} and {tour.table('hourly_departures_backfill')} differ: please report it"
        )
    plot = tour.work_dir / "hourly_departures.png"
    plot_departures(streamed, plot)
    print_departures(console, streamed)
    print_steps(console, finished)
    console.print("The streamed and the backfilled table are equal, row for row.")
    console.print(f"Plot: {plot}", soft_wrap=True)
    print_next_steps(console, tour.work_dir)
