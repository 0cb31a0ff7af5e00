"""Show, verify, repair and convert the files of a log."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from itertools import groupby, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import typer

from millrace.cli.command_group import command_group
from millrace.cli.options import AsJson
from millrace.errors import UsageError
from millrace_broker.cli import log_check
from millrace_broker.cli import log_options as options

if TYPE_CHECKING:
    from millrace_broker.log_tools import DumpOptions, Finding, Problem, Row
    from millrace_broker.log_tools.decoders import RecordDecoder

app = command_group("Show, verify, repair and convert the files of a log.")

_TABLE_ROWS: Final = 500
"""Rows per table. A log has too many batches to compute the column widths of all before the first row is printed."""


app.command()(log_check.verify)
app.command()(log_check.repair)
app.command()(log_check.convert)


@app.callback()
def _group() -> None:
    """Show, verify, repair and convert the files of a log. No broker is needed."""


@app.command()
def dump(
    paths: options.DumpPaths = None,
    files: options.Files = None,
    print_data_log: options.PrintDataLog = False,
    deep_iteration: options.DeepIteration = False,
    schema: options.Schema = None,
    verify_index_only: options.VerifyIndexOnly = False,
    index_sanity_check: options.IndexSanityCheck = False,
    max_bytes: options.MaxBytes = None,
    max_message_size: options.MaxMessageSize = None,
    offsets_decoder: options.OffsetsDecoder = False,
    transaction_log_decoder: options.TransactionLogDecoder = False,
    share_group_state_decoder: options.ShareGroupStateDecoder = False,
    key_decoder_class: options.KeyDecoderClass = None,
    value_decoder_class: options.ValueDecoderClass = None,
    skip_record_metadata: options.SkipRecordMetadata = False,
    cluster_metadata_decoder: options.ClusterMetadataDecoder = False,
    remote_log_metadata_decoder: options.RemoteLogMetadataDecoder = False,
    as_json: AsJson = False,
) -> None:
    """Show the batches of segments, the entries of indexes, snapshots and checkpoints, and check them.

    Nothing is written, and a broker may be running. The exit code is 1 if anything is damaged: standard error then
    says where. With --json every line is an object with its *file* and *kind*.

    Examples:

      millrace log dump data/orders-0

      millrace log dump data/orders-0/00000000000000000000.log --print-data-log --max-bytes 10000

      millrace log dump data/orders-* --verify-index-only

      millrace log dump data/__consumer_offsets-3 --print-data-log --json

      millrace log dump --files 00000000000000000000.log --json | jq 'select(.kind == "batch") | .records'
    """
    from millrace_broker.log_tools import DumpOptions, files_of

    if cluster_metadata_decoder or remote_log_metadata_decoder:
        raise UsageError(
            "--cluster-metadata-decoder, --remote-log-metadata-decoder: no topic holds such metadata here; see "
            "millrace topics describe, and the manifests in the remote directory"
        )
    wanted = DumpOptions(
        with_data=print_data_log or skip_record_metadata,
        deep=deep_iteration,
        schema=options.parsed_schema(schema),
        max_bytes=max_bytes,
        max_message_bytes=max_message_size,
        decoder=_decoder(
            key_decoder_class,
            value_decoder_class,
            OFFSETS=offsets_decoder,
            TRANSACTIONS=transaction_log_decoder,
            SHARE_STATES=share_group_state_decoder,
        ),
        with_metadata=not skip_record_metadata,
        only_disagreements=verify_index_only,
        only_sanity=index_sanity_check,
    )
    named = [*(paths or ()), *(Path(name.strip()) for name in (files or "").split(",") if name.strip())]
    if not named:
        raise UsageError("name a partition directory, or files of one")
    chosen = [file for path in named for file in files_of(path, wanted)]
    show = _show_json if as_json else _show
    problems = [show(file, wanted) for file in chosen]
    if any(problems):
        typer.echo(f"millrace: {sum(problems)} problems in {sum(map(bool, problems))} of {len(chosen)} files", err=True)
        raise typer.Exit(1)


def _decoder(key: str | None, value: str | None, **topics: bool) -> RecordDecoder | None:
    """Return the requested decoder: one of ``decoders`` by its name, or one of plain types."""
    from millrace_broker.log_tools import decoders

    wanted = [name for name, is_wanted in topics.items() if is_wanted]
    if len(wanted) + (key is not None or value is not None) > 1:
        raise UsageError("give one decoder: a topic's, or decoder classes")
    if wanted:
        found: RecordDecoder = getattr(decoders, wanted[0])
        return found
    return None if key is None and value is None else decoders.plain_decoder(key, value)


@contextmanager
def _findings(path: Path, options: DumpOptions) -> Iterator[Iterator[Finding]]:
    """Read a file. Show progress unless standard output is a terminal, where it would mix with the rows."""
    from millrace.cli.output import progress
    from millrace_broker.log_tools import Note, dump_file

    def read(on_progress: Callable[[int, int], None] | None) -> Iterator[Finding]:
        try:
            yield from dump_file(path, options, on_progress)
        except FileNotFoundError:
            yield Note("was deleted meanwhile, by retention or a roll")

    if sys.stdout.isatty():
        yield read(None)
        return
    with progress() as bar:
        task = bar.add_task(path.name, total=None, rate="bytes")
        yield read(lambda done, total: bar.update(task, completed=done, total=total))


# --- JSON ----------------------------------------------------------------------------------------------------


def _show_json(path: Path, options: DumpOptions) -> int:
    """Print the findings of a file as lines of JSON. Return the number of problems."""
    from millrace.cli.output import json_line
    from millrace_broker.log_tools import Problem

    problems = 0
    with _findings(path, options) as findings:
        for finding in findings:
            typer.echo(json_line({"file": str(path), **_fields(finding)}))
            if isinstance(finding, Problem):
                problems += 1
                _report(path, finding)
    return problems


def _fields(finding: Finding) -> dict[str, Any]:
    from millrace_broker.log_tools import Problem, Row

    if isinstance(finding, Row):
        return {"kind": finding.kind, **{name: _json(value) for name, value in finding.values.items()}}
    if isinstance(finding, Problem):
        return {"kind": "problem", "position": finding.position, "offset": finding.offset, "text": finding.text}
    return {"kind": "note", "text": finding.text}


def _json(value: Any) -> Any:
    """Convert bytes to text, or to marked base64 as ``millrace consume`` does; also within lists."""
    from millrace.cli.output import json_value, printable

    if isinstance(value, list):
        return [_json(item) for item in value]
    if not isinstance(value, bytes):
        return value
    text = printable(value)
    return {"base64": json_value(value)} if text is None else text


def _report(path: Path, problem: Problem) -> None:
    typer.echo(f"millrace: {path}: {problem}", err=True)


# --- tables --------------------------------------------------------------------------------------------------


def _show(path: Path, options: DumpOptions) -> int:
    """Print the findings of a file as tables and lines. Return the number of problems."""
    from rich.markup import escape

    from millrace.cli.output import console
    from millrace_broker.log_tools import Problem, Row

    problems = rows = 0
    console().print(f"[bold]{escape(str(path))}[/bold]", soft_wrap=True)
    with _findings(path, options) as findings:
        for (kind, _), group in groupby(findings, key=_likeness):
            if kind == "problem":
                for problem in group:
                    assert isinstance(problem, Problem)
                    problems += 1
                    sys.stdout.flush()
                    _report(path, problem)
            elif kind == "note":
                for note in group:
                    typer.echo(f"note: {_fields(note)['text']}")
            elif kind == "batch" and (options.with_data or options.deep):
                for row in group:
                    rows += 1
                    assert isinstance(row, Row)
                    typer.echo(_batch_line(row.values))
            else:
                rows += _print_rows(kind, (row for row in group if isinstance(row, Row)))
    if not rows and not problems:
        typer.echo("nothing wrong" if options.only_indexes else "empty")
    return problems


def _likeness(finding: Finding) -> tuple[str, tuple[str, ...]]:
    """Return the key by which findings share a table: kind and columns."""
    from millrace_broker.log_tools import Note, Row

    if isinstance(finding, Row):
        columns = finding.values.get("value")
        return finding.kind, (*finding.values, *(columns if isinstance(columns, dict) else ()))
    return ("note" if isinstance(finding, Note) else "problem"), ()


def _print_rows(kind: str, rows: Iterable[Row]) -> int:
    from millrace.cli.output import print_table

    count = 0
    rows = iter(rows)
    while chunk := list(islice(rows, _TABLE_ROWS)):
        shown = [_batch_cells(row.values) if kind == "batch" else _cells(row.values) for row in chunk]
        print_table([name.replace("_", " ").upper() for name, _ in shown[0]], [[c for _, c in row] for row in shown])
        count += len(chunk)
    return count


Cells: TypeAlias = list[tuple[str, Any]]
"""Names and values of a table row. A topic may have columns with the names of record fields."""


def _cells(values: dict[str, Any]) -> Cells:
    cells: Cells = []
    for name, value in values.items():
        if name == "value" and isinstance(value, dict):
            cells += value.items()
        elif name == "headers":
            cells.append((name, " ".join(f"{key}={_json(item)}" for key, item in value)))
        else:
            cells.append((name, _time(value) if name.endswith("timestamp") else value))
    return cells


def _time(timestamp_ms: Any) -> Any:
    """Format a timestamp for people, beside its number as in files and options."""
    from datetime import UTC, datetime, timedelta

    if not isinstance(timestamp_ms, int) or timestamp_ms < 0:
        return timestamp_ms
    try:
        moment = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=timestamp_ms)
    except OverflowError:
        return timestamp_ms
    return f"{timestamp_ms} ({moment.strftime('%Y-%m-%d %H:%M:%S')}.{moment.microsecond // 1000:03d}Z)"


def _batch_cells(values: dict[str, Any]) -> Cells:
    """Combine a batch's fields into few cells, so that a row stays readable."""
    producer = ""
    if values.get("producer_id") is not None:
        sequences = f"{values['base_sequence']}..{values['last_sequence']}"
        producer = f"{values['producer_id']} epoch {values['producer_epoch']} sequence {sequences}"
    return [
        ("position", values["position"]),
        ("offsets", f"{values['first_offset']}..{values['last_offset']}"),
        ("records", values["records"]),
        ("bytes", values["bytes"]),
        ("max_timestamp", _time(values["max_timestamp"])),
        ("body", _body(values)),
        ("epoch", values.get("leader_epoch")),
        ("producer", producer),
        ("flags", ", ".join(values.get("flags", ()))),
        ("checksum", "ok" if values["is_valid"] else "WRONG"),
    ]


def _body(values: dict[str, Any]) -> str:
    parts = [values["body"] if values["magic"] == 2 else f"magic {values['magic']}"]
    if values["compression"] != "none":
        parts.append(values["compression"])
    if values.get("schema_id"):
        parts.append(f"schema {values['schema_id']}")
    if values["timestamp_type"] == "log_append_time":
        parts.append("append time")
    return " ".join(parts)


def _batch_line(values: dict[str, Any]) -> str:
    cells = _batch_cells(values)
    named = [f"{name.replace('_', ' ')} {value}" for name, value in cells if value not in ("", None)]
    return "batch: " + ", ".join(named)
