"""Report of the demo: tables, a plot, and speeds.

delta-rs reads the Delta tables, not Spark, so a second, independent reader confirms the results.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
from rich.console import Console
from rich.table import Table

from millrace_streams.demo.stages import SPARK, StageEvent

_ROWS_SHOWN = 8


def read_delta(path: Path) -> pa.Table:
    """Read the current version of a Delta table."""
    from deltalake import DeltaTable

    return pa.table(DeltaTable(str(path)).to_pyarrow_table())


def sorted_rows(table: pa.Table) -> pa.Table:
    """Return the same rows in an order that depends only on the rows."""
    names = sorted(table.column_names)
    return table.select(names).sort_by([(name, "ascending") for name in names]).combine_chunks()


def print_departures(console: Console, departures: pa.Table) -> None:
    """Print the busiest hours of the windowed table."""
    shown = departures.sort_by([("departures", "descending"), ("window_start", "ascending"), ("origin", "ascending")])
    table = Table(title=f"hourly_departures: the busiest of {departures.num_rows:,} origin-hours")
    for name in ("origin", "window_start", "window_end", "departures", "mean_delay"):
        table.add_column(name, justify="right" if name in ("departures", "mean_delay") else "left")
    for row in shown.slice(0, _ROWS_SHOWN).to_pylist():
        table.add_row(
            row["origin"],
            f"{row['window_start']:%Y-%m-%d %H:%M}",
            f"{row['window_end']:%Y-%m-%d %H:%M}",
            str(row["departures"]),
            f"{row['mean_delay']:.1f} min",
        )
    console.print(table)


def print_steps(console: Console, finished: Sequence[StageEvent]) -> None:
    """Print the rows per second of each stage, without the start of Spark and with it.

    Spark starts once. The second figure adds its whole start to every stage that needs it, which gives the speed of
    that stage as a separate job.
    """
    start = next((event.seconds for event in finished if event.stage == SPARK), 0.0)
    table = Table(title="Stages")
    for name in ("stage", "rows", "seconds", "rows/s", "rows/s with Spark's start"):
        table.add_column(name, justify="left" if name == "stage" else "right")
    for event in finished:
        needs_spark = not event.stage.startswith("load")
        if event.stage == SPARK:
            table.add_row(event.stage, "", f"{event.seconds:.1f}", "", "")
        elif not event.rows:
            table.add_row(event.stage, "0", f"{event.seconds:.1f}", "nothing new", "")
        else:
            with_start = f"{event.rows / (event.seconds + start):,.0f}" if needs_spark else ""
            speed = f"{event.rows / event.seconds:,.0f}"
            table.add_row(event.stage, f"{event.rows:,}", f"{event.seconds:.1f}", speed, with_start)
    console.print(table)


def print_next_steps(console: Console, work_dir: Path) -> None:
    """Print three commands to continue with."""
    shown = work_dir.relative_to(Path.cwd()) if work_dir.is_relative_to(Path.cwd()) else work_dir
    console.print("\n[bold]Try next[/]")
    checkpoint, log = f"{shown}/checkpoints/hourly_departures", f"{shown}/broker/flights-0/{0:020d}.log"
    commands = {
        "look into the state of the windows": f"millrace streams query hourly-departures -c {checkpoint} --key JFK",
        "see what a segment file holds": f"millrace log dump {log} | head -20",
        "start the broker again; then try `millrace consume flights --from beginning --max-messages 3`": (
            f"millrace broker --data-dir {shown}/broker"
        ),
    }
    for purpose, command in commands.items():
        console.print(f"  {command}\n    [dim]{purpose}[/]", soft_wrap=True, highlight=False)


def plot_departures(departures: pa.Table, path: Path) -> None:
    """Draw departures and mean delay by hour of the day and origin (New York's winter time) to a PNG file."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    local = pc.subtract(departures["window_start"], pa.scalar(5 * 3600 * 1_000_000, pa.duration("us")))
    hours = departures.append_column("hour", pc.hour(local)).append_column(
        "delay_sum", pc.multiply(departures["mean_delay"], pc.cast(departures["departures"], pa.float64()))
    )
    by_hour = hours.group_by(["origin", "hour"]).aggregate([("departures", "sum"), ("delay_sum", "sum")])
    figure, (left, right) = plt.subplots(1, 2, figsize=(11, 4))
    for origin in sorted(set(by_hour["origin"].to_pylist())):
        rows = by_hour.filter(pc.equal(by_hour["origin"], origin)).sort_by("hour")
        left.plot(rows["hour"], rows["departures_sum"], marker="o", label=origin)
        right.plot(rows["hour"], pc.divide(rows["delay_sum_sum"], rows["departures_sum"]), marker="o", label=origin)
    left.set(title="Departures in 2013", xlabel="scheduled hour, New York (EST)", ylabel="flights")
    right.set(title="Mean departure delay", xlabel="scheduled hour, New York (EST)", ylabel="minutes")
    for axes in (left, right):
        axes.set_xticks(range(0, 24, 3))
    left.legend()
    figure.tight_layout()
    figure.savefig(path, dpi=120)
    plt.close(figure)
