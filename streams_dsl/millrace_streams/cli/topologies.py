"""Commands of ``millrace streams`` that show a topology before it runs.

The commands show the topology's graph and its compiled plan.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Final

import typer

from millrace.cli.options import BootstrapServer
from millrace.errors import EnvironmentProblemError, UsageError
from millrace_streams.cli.options import DEFAULT_SERVER, TopologyArgument
from millrace_streams.graph.topology import DescriptionFormat

_FORMATS: Final[dict[str, DescriptionFormat]] = {".svg": "svg", ".mmd": "mermaid"}


def describe(
    topology: TopologyArgument,
    picture: Annotated[
        Path | None,
        typer.Option("--picture", metavar="FILE", help="Write a picture: FILE.svg, or FILE.mmd for Mermaid."),
    ] = None,
) -> None:
    """Print a topology's graph: its sub-topologies, nodes, stores, topics. Needs neither a broker nor Spark.

    Examples:

      millrace streams describe jobs/word_count.py

      millrace streams describe my_package.hours:topology --picture hours.svg
    """
    from millrace_streams.application import load_topology

    if picture is not None and picture.suffix not in _FORMATS:
        raise UsageError(f"--picture {picture}: expected a file name ending in .svg, or .mmd for a Mermaid flowchart")
    found = load_topology(topology)
    if picture is None:
        typer.echo(found.describe())
        return
    try:
        picture.write_text(found.describe(_FORMATS[picture.suffix]), encoding="utf-8")
    except OSError as error:
        raise EnvironmentProblemError(f"{picture} cannot be written: {error.strerror}") from error


def explain(topology: TopologyArgument, bootstrap_server: BootstrapServer = None) -> None:
    """Print the compiled plan of a topology: pushed-down columns, steps in the reader, repartitions, state.

    The broker gives the columns of typed topics. No query is started.

    Examples:

      millrace streams explain my_package.hours:topology -b localhost:9092
    """
    from millrace_streams.application import load_topology
    from millrace_streams.compiler import explain as explain_plan
    from millrace_streams.runners.source import Job, JobInputs

    inputs = JobInputs(bootstrap_servers=bootstrap_server or DEFAULT_SERVER)
    typer.echo(explain_plan(Job.prepare(load_topology(topology), inputs).plan))
