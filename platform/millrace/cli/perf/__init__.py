"""Measure the speed of producers and consumers, with the output lines of Kafka's tools."""

import typer

from millrace.cli.perf.consume import consume
from millrace.cli.perf.latency import latency
from millrace.cli.perf.produce import produce

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="markdown",
    help="Measure the speed of producers and consumers, with the output lines of Kafka's tools.",
)
app.command()(produce)
app.command()(consume)
app.command()(latency)
