"""``millrace log verify``, ``repair`` and ``convert`` for partition directories."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from millrace.cli.options import AsJson
from millrace.errors import UsageError
from millrace_broker.cli import log_options as given
from millrace_broker.cli.log_options import LogFormat, parsed_schema

if TYPE_CHECKING:
    from millrace_broker.log_tools.repair import Repair


@contextmanager
def _bar(what: str, total_bytes: int) -> Iterator[Callable[[int], None]]:
    """Show a progress bar on standard error. Yield a function that advances it by a number of bytes."""
    from millrace.cli.output import progress

    with progress() as bar:
        task = bar.add_task(what, total=total_bytes, rate="bytes")
        yield lambda done: bar.advance(task, done)


def _partitions(paths: Sequence[Path]) -> list[Path]:
    from millrace_broker.log_tools.verify import partitions_of

    return [directory for path in paths for directory in partitions_of(path)]


def _print_line(fields: dict[str, Any]) -> None:
    from millrace.cli.output import json_line

    typer.echo(json_line(fields))


# --- verify --------------------------------------------------------------------------------------------------


def verify(paths: given.Paths, deep: given.Deep = False, schema: given.Schema = None, as_json: AsJson = False) -> None:
    """Check all files of partitions: checksums, offsets, and that indexes and snapshots agree with the logs.

    Nothing is written, and a broker may be running. The exit code is 0 if all files are intact, and 1 if any is
    damaged. With --json every line is an object with its *partition* and *kind*.

    Examples:

      millrace log verify data

      millrace log verify data/orders-0 data/orders-1 --deep

      millrace log verify data --json | jq 'select(.kind == "problem")'
    """
    from millrace_broker.log_tools import Problem
    from millrace_broker.log_tools.verify import VerifyOptions, log_bytes, verify_partition

    directories = _partitions(paths)
    options = VerifyOptions(deep=deep, schema=parsed_schema(schema))
    problems, rows = 0, []
    with _bar("verify", sum(map(log_bytes, directories))) as advance:
        for directory in directories:
            segments, found = [], 0
            for path, finding in verify_partition(directory, options, advance):
                if isinstance(finding, Problem):
                    found += 1
                    typer.echo(f"millrace: {path}: {finding}", err=True)
                if as_json:
                    _print_finding(directory, path, finding)
                elif not isinstance(finding, Problem):
                    segments += _noted(path, finding)
            rows.append(_summary(directory, segments, found))
            problems += found
    if not as_json:
        from millrace.cli.output import print_table

        print_table(["PARTITION", "OFFSETS", "SEGMENTS", "BATCHES", "RECORDS", "BYTES", "RESULT"], rows)
    if problems:
        typer.echo(f"millrace: {problems} problems; see millrace log repair", err=True)
        raise typer.Exit(1)


def _print_finding(directory: Path, path: Path, finding: Any) -> None:
    from millrace_broker.log_tools import Problem, Row

    fields: dict[str, Any] = {"partition": str(directory), "file": path.name}
    if isinstance(finding, Row):
        fields |= {"kind": finding.kind, **finding.values}
    elif isinstance(finding, Problem):
        fields |= {"kind": "problem", "position": finding.position, "offset": finding.offset, "text": finding.text}
    else:
        fields |= {"kind": "note", "text": finding.text}
    _print_line(fields)


def _noted(path: Path, finding: Any) -> list[dict[str, Any]]:
    """Return a segment's figures. Print a note at once."""
    from millrace_broker.log_tools import Row

    if isinstance(finding, Row):
        return [finding.values]
    typer.echo(f"note: {path}: {finding.text}", err=True)
    return []


def _summary(directory: Path, segments: list[dict[str, Any]], problems: int) -> list[Any]:
    if not segments:
        return [directory.name, "", 0, 0, 0, 0, f"{problems} problems"]
    sums = [sum(segment[name] for segment in segments) for name in ("batches", "records", "bytes")]
    offsets = f"{segments[0]['base_offset']}..{segments[-1]['end_offset'] - 1}"
    return [directory.name, offsets, len(segments), *sums, f"{problems} problems" if problems else "sound"]


# --- repair --------------------------------------------------------------------------------------------------


def repair(
    paths: given.Paths,
    yes: given.Yes = False,
    index_interval_bytes: given.IndexInterval = 4096,
    as_json: AsJson = False,
) -> None:
    """Repair damaged partitions: keep the intact part of logs, rebuild indexes, remove files that the broker recreates.

    Without --yes nothing is changed: the command prints every step, with the offsets that it loses. Damaged logs are
    kept beside the repaired ones as *.damaged*. The command is refused while a broker uses the directory. The exit code
    is 0 if nothing needs a repair (any more), and 1 otherwise.

    Examples:

      millrace log repair data/orders-0

      millrace log repair data --yes

      millrace log repair data --json | jq .lost
    """
    from millrace_broker.log_tools.repair import carry_out, no_broker, plan_repair
    from millrace_broker.log_tools.verify import log_bytes

    count = 0
    directories = _partitions(paths)
    with _bar("repair", sum(map(log_bytes, directories))) as advance:
        for directory in directories:
            with no_broker(directory.absolute().parent, is_writing=yes):
                planned = plan_repair(directory, index_interval_bytes=index_interval_bytes, on_progress=advance)
                count += len(planned)
                for step in planned:
                    _show_step(directory, step, is_done=yes, as_json=as_json)
                if yes:
                    carry_out(planned, directory)
    if not count and not as_json:
        typer.echo(f"nothing to repair in {len(directories)} partitions")
    if count and not yes:
        typer.echo(f"millrace: {count} repairs are needed; --yes carries them out", err=True)
        raise typer.Exit(1)


def _show_step(directory: Path, step: Repair, *, is_done: bool, as_json: bool) -> None:
    if as_json:
        fields = {"partition": str(directory), "file": step.path.name, "action": step.action, "why": step.why}
        _print_line({**fields, "lost": list(step.lost), "is_done": is_done})
        return
    typer.echo(f"{step.path}: {step.action} ({step.why})")
    for lost in step.lost:
        typer.echo(f"  lost: {lost}")


# --- convert -------------------------------------------------------------------------------------------------


def convert(
    source: given.Source,
    target: given.Target,
    log_format: given.Format = LogFormat.ROWS,
    compression: given.CompressionName = None,
    topic_id: given.TopicId = None,
    allow_loss: given.AllowLoss = False,
    forget_producers: given.ForgetProducers = False,
    index_interval_bytes: given.IndexInterval = 4096,
    as_json: AsJson = False,
) -> None:
    """Convert a partition directory: from Kafka into millrace, and back.

    Offsets, leader epochs, producers and transactions stay. The target is verified before it gets its name. Typed
    batches stay typed only in *columnar*; Kafka cannot read *columnar* ones.

    To bring it into a broker, create the topic and stop the broker. Convert with the topic's id and with
    --forget-producers, because producer ids of one cluster mean others in another. Put the result in place of the
    partition's directory, and start the broker.

    Examples:

      millrace log convert /var/kafka/orders-0 new/orders-0 --topic-id rJBdm-l1QROoHDeRWCQyEA --forget-producers

      millrace log convert /var/kafka/orders-0 /tmp/orders-0 --format columnar --compression zstd

      millrace log convert data/orders-0 /tmp/kafka/orders-0 --format rows
    """
    from millrace.ids import id_text, parse_id
    from millrace.records import Compression, RecordFormat
    from millrace_broker.log_tools.convert import ConvertOptions, convert_partition
    from millrace_broker.log_tools.repair import no_broker
    from millrace_broker.log_tools.verify import log_bytes, partitions_of

    try:
        wanted_id = None if topic_id is None else parse_id(topic_id)
    except ValueError:
        raise UsageError(f"--topic-id={topic_id}: expected a topic id of 22 characters") from None
    formats = {
        LogFormat.ROWS: RecordFormat.ROWS,
        LogFormat.COLUMNAR: RecordFormat.COLUMNAR,
        LogFormat.MAGIC_0: RecordFormat.MAGIC_0,
        LogFormat.MAGIC_1: RecordFormat.MAGIC_1,
    }
    options = ConvertOptions(
        record_format=formats[log_format],
        compression=None if compression is None else Compression.parse(compression),
        topic_id=wanted_id,
        allow_loss=allow_loss,
        forgets_producers=forget_producers,
        index_interval_bytes=index_interval_bytes,
    )
    partitions_of(source)
    with _bar("convert", log_bytes(source)) as advance, no_broker(source.absolute().parent, is_writing=False):
        done = convert_partition(source, target, options, advance)
    if as_json:
        fields = {"source": str(source), "target": str(target), "topic_id": id_text(done.topic_id)}
        figures = ("segments", "start_offset", "end_offset", "source_bytes", "target_bytes")
        _print_line({**fields, **{name: getattr(done, name) for name in figures}, "notes": list(done.notes)})
        return
    for note in done.notes:
        typer.echo(f"note: {note}", err=True)
    typer.echo(
        f"{target}: offsets {done.start_offset}..{done.end_offset - 1} in {done.segments} segments, "
        f"{done.source_bytes} bytes became {done.target_bytes}, topic id {id_text(done.topic_id)}"
    )
