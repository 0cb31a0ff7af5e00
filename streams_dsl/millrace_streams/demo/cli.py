"""``millrace demo``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def demo(
    work_dir: Annotated[Path, typer.Option(help="Directory of the broker, the tables and the checkpoints.")] = Path(
        "demo-data"
    ),
    partitions: Annotated[int, typer.Option(min=1, help="Partitions of a new topic.")] = 4,
    rows: Annotated[int | None, typer.Option(min=1, help="Load only this many rows of each data set.")] = None,
) -> None:
    """Stream real flights through a broker, a windowed topology and Delta tables.

    The demo starts a broker, loads 336,776 flights and 26,115 weather rows, and runs one Spark session. The session
    ingests both topics to Delta, counts hourly departures as a stream, and repeats that count as a batch backfill. Then
    the demo shows the results. Interrupt or kill the demo at any point and run it again. The demo continues, and
    nothing is lost or duplicated.

    Examples:

      millrace demo

      millrace demo --work-dir /tmp/flights --rows 50000
    """
    from rich.console import Console

    from millrace.cli.paths import conf_dir, jobs_dir
    from millrace_streams.demo.tour import Tour, run_tour

    tour = Tour(work_dir=work_dir.resolve(), jobs=jobs_dir(), conf=conf_dir(), partitions=partitions, rows=rows)
    run_tour(tour, Console())
