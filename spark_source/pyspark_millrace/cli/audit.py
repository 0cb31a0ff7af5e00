"""Command ``millrace audit``, which checks a Delta table against a query's input.

The command proves that the table holds each record that a Spark query read, once.
"""

from __future__ import annotations

from dataclasses import asdict
from itertools import groupby
from typing import TYPE_CHECKING, Annotated, Any

import typer

from millrace.cli.options import AsJson, BootstrapServer, ClientConfigFile, client_config
from millrace.config.client import Isolation

if TYPE_CHECKING:
    from pyspark_millrace.audit import AuditReport
    from pyspark_millrace.audit.transactions import AuditedBatch

AppIdOption = Annotated[
    str | None, typer.Option(metavar="TEXT", help="txnAppId of the query's commits; its id if none was set.")
]
OffsetColumnsOption = Annotated[
    str | None,
    typer.Option(
        metavar="[TOPIC,]PARTITION,OFFSET",
        help="Columns with topic, partition and offset of a row, if their names differ.",
    ),
]


def audit(
    checkpoint: Annotated[
        str, typer.Option("--checkpoint", "-c", metavar="DIRECTORY", help="The query's checkpointLocation.")
    ],
    table: Annotated[str, typer.Option("--table", "-t", metavar="DIRECTORY", help="The Delta table.")],
    topic: Annotated[
        list[str] | None, typer.Option(metavar="TOPIC", help="Only this topic goes into the table. Repeatable.")
    ] = None,
    app_id: AppIdOption = None,
    offset_columns: OffsetColumnsOption = None,
    rows_differ: Annotated[
        bool, typer.Option("--rows-differ", help="The query filters or joins: do not count its rows.")
    ] = False,
    other_writers: Annotated[
        bool, typer.Option("--other-writers", help="Accept rows of other writers in the table.")
    ] = False,
    isolation_level: Annotated[
        Isolation, typer.Option(help="Isolation level of the query.")
    ] = Isolation.READ_COMMITTED,
    every_batch: Annotated[bool, typer.Option("--every-batch", help="Show each batch on a line of its own.")] = False,
    as_json: AsJson = False,
    bootstrap_server: BootstrapServer = None,
    client_config_file: ClientConfigFile = None,
) -> None:
    """Prove that a Delta table holds what a Spark query read, each record once.

    The audit joins the checkpoint of the query, the log of the table and the topics. It changes nothing. If the table
    has the columns __partition and __offset (for several topics also __topic), each row is checked. Otherwise the rows
    of each commit are counted. Exit codes: 0 if all is proved, 4 if records are missing, duplicated or removed. The
    code is 3 if no fault was found but not everything can be proved, and 1 or 2 if the audit did not end.

    Examples:

      millrace audit --checkpoint /data/flights/_checkpoints/1 --table /data/flights

      millrace audit -c /data/flights/_checkpoints/1 -t /data/flights --json | jq '.findings'
    """
    from millrace.cli.output import print_json
    from millrace.clients import Admin, SchemaCache
    from millrace.config.client import ClientConfig
    from pyspark_millrace.audit import AuditOptions
    from pyspark_millrace.audit import audit as join
    from pyspark_millrace.audit.delta_history import read_history
    from pyspark_millrace.audit.topic_log import TopicLog
    from pyspark_millrace.checkpoints.query_log import read_checkpoint

    history = read_history(
        table
    )  # before the checkpoint: if the query runs, the checkpoint then covers all commits read here
    found = read_checkpoint(checkpoint)
    options = AuditOptions(
        application=app_id,
        offset_columns=offset_columns,
        rows_differ=rows_differ,
        others_allowed=other_writers,
        topics=frozenset(topic or ()),
    )
    settings = client_config(ClientConfig, bootstrap_server, client_config_file)
    schemas = SchemaCache(settings)
    try:
        with Admin(settings) as admin:
            report = join(found, history, TopicLog(admin, schemas, isolation_level), options)
    finally:
        schemas.close()
    if as_json:
        print_json(asdict(report) | {"by_rows": report.by_rows, "exit_code": report.exit_code})
    else:
        _show(report, every_batch=every_batch)
    raise typer.Exit(report.exit_code)


def _show(report: AuditReport, *, every_batch: bool) -> None:
    from millrace.cli.output import print_table
    from pyspark_millrace.audit.transactions import Verdict

    first, last = report.table_versions
    typer.echo(f"query {report.query_id} into {report.table}, versions {first} to {last}")
    counted = "rows were counted" if report.counts_rows else "no rows were counted"
    typer.echo("each row was looked at" if report.by_rows else f"{counted}: {report.why_not_by_rows}")
    lines = [[batch] for batch in report.batches]
    if not every_batch:
        # A line shows neighbouring batches with the same verdict and reason.
        runs = groupby(report.batches, lambda batch: (batch.verdict, batch.reason))
        lines = [list(run) for _, run in runs]
    print_table(["BATCH", "OFFSETS", "ROWS", "VERSION", "VERDICT", "REASON"], [_line(run) for run in lines])
    for batch in report.batches:
        if batch.ranges and batch.verdict not in (Verdict.ONCE, Verdict.NOTHING):
            typer.echo(f"{batch.verdict}, batch {batch.batch_id}: {', '.join(batch.ranges)}")
    for finding in report.findings:
        typer.echo(f"{finding.severity}: {finding.message}")
    typer.echo(
        {
            0: "proved: each range of offsets landed once",
            3: "no fault was found, and not everything can be proved",
            4: "not exactly once",
        }[report.exit_code]
    )


def _line(run: list[AuditedBatch]) -> tuple[Any, ...]:
    first, last = run[0], run[-1]
    versions = [version for batch in run for version in batch.versions]
    return (
        str(first.batch_id) if first is last else f"{first.batch_id}..{last.batch_id}",
        _total([batch.offsets for batch in run]),
        _total([batch.rows for batch in run]),
        "" if not versions else str(versions[0]) if len(versions) == 1 else f"{versions[0]}..{versions[-1]}",
        str(first.verdict),
        first.reason,
    )


def _total(numbers: list[int | None]) -> int | None:
    known = [number for number in numbers if number is not None]
    return sum(known) if known else None
