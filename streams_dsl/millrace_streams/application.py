"""Jobs that run a topology, on the common job frame ``pyspark_millrace.job``.

A job is a file with a function that builds a topology. ``stream_main`` runs it as a streaming job. ``batch_main`` runs
a topology named on the command line over the retained records.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event
from types import ModuleType
from typing import TYPE_CHECKING, Annotated, Final, TypeVar

from typer import Option

from millrace.config.iso8601 import iso_time
from millrace.errors import UsageError
from millrace_streams.graph import TopicSinkNode, Topology
from pyspark_millrace.job import (
    EXIT_CUT_OFF,
    JobArguments,
    StreamArguments,
    follow,
    pair_option,
    pairs,
    parse_arguments,
    run_job,
    say,
    start_spark,
    watched,
)

if TYPE_CHECKING:
    from millrace_streams.runners.streaming_query import BatchReport

_DEFAULT_FUNCTION: Final = "topology"

TopologyFactory = Callable[[], Topology]
_WHERE: Final = "module:function, or path/file.py[:function]"


@dataclass(frozen=True, kw_only=True)
class TopologyArguments(JobArguments):
    """Options of all jobs that run a topology."""

    table: Annotated[
        list[str],
        Option(
            metavar="[NAME=]PATH",
            help="directory or URI of the topology's Delta table; NAME= is needed if it has several tables",
        ),
    ] = field(default_factory=list)
    option: Annotated[list[str], pair_option("further option of the source")] = field(default_factory=list)
    dead_letters: Annotated[
        str | None, Option(metavar="TOPIC", help="topic for records that fail (default: they stop the job)")
    ] = None
    explain: Annotated[bool, Option("--explain", help="print the compiled plan before running it")] = False


@dataclass(frozen=True, kw_only=True)
class TopologyStreamArguments(TopologyArguments, StreamArguments):
    """Command-line options of a topology that runs as a stream.

    A job can add options of its own in a subclass.
    """

    checkpoint: Annotated[
        str | None, Option(metavar="PATH", help="checkpoint of the query, with its state (default: beside the table)")
    ] = None
    max_offsets_per_trigger: Annotated[
        int | None,
        Option(
            metavar="N",
            help="largest number of records in a micro-batch (default: 4,000,000; 10,000,000 for topologies that "
            "neither keep nor move records)",
        ),
    ] = None
    trigger_interval: Annotated[
        str | None, Option(metavar="TIME", help="time between micro-batches with --continuous (default: no pause)")
    ] = None


@dataclass(frozen=True, kw_only=True)
class NamedStreamArguments(TopologyStreamArguments):
    """Options of a streaming topology that the command line names."""

    topology: Annotated[str, Option(metavar="WHERE", help=_WHERE)]


@dataclass(frozen=True, kw_only=True)
class BatchArguments(TopologyArguments):
    """Options of a topology that runs over the retained records."""

    topology: Annotated[str, Option(metavar="WHERE", help=_WHERE)]
    start: Annotated[
        str | None, Option("--from", metavar="TIME", help="only records from this time on (ISO 8601, UTC)")
    ] = None
    end: Annotated[str | None, Option("--to", metavar="TIME", help="only records before this time (ISO 8601, UTC)")] = (
        None
    )


StreamArgumentsT = TypeVar("StreamArgumentsT", bound=TopologyStreamArguments)


def load_topology(spec: str) -> Topology:
    """Build the topology that ``module:function`` or ``path/file.py[:function]`` names.

    The default function is ``topology``. Raises ``UsageError`` if there is no such function, and the errors of the
    function.
    """
    place, _, function_name = spec.partition(":")
    function_name = function_name or _DEFAULT_FUNCTION
    module = _load_file(Path(place)) if place.endswith(".py") else _import(place)
    function = getattr(module, function_name, None)
    if not callable(function):
        raise UsageError(f"{place} has no function {function_name}: name it as {place}:<function>")
    topology = function()
    if not isinstance(topology, Topology):
        raise UsageError(f"{spec} gave {type(topology).__name__}, not a Topology: end it with builder.build()")
    return topology


def stream_main(
    factory: TopologyFactory | None, arguments: Sequence[str], *, script: str, description: str | None
) -> int:
    """Run a topology as a streaming job and return its exit code. Without ``factory`` the command line names the
    topology.
    """
    if factory is not None:
        return stream_main_of(
            TopologyStreamArguments, lambda parsed: factory(), arguments, script=script, description=description
        )
    return stream_main_of(
        NamedStreamArguments,
        lambda parsed: load_topology(parsed.topology),
        arguments,
        script=script,
        description=description,
    )


def stream_main_of(
    kind: type[StreamArgumentsT],
    factory: Callable[[StreamArgumentsT], Topology],
    arguments: Sequence[str],
    *,
    script: str,
    description: str | None,
) -> int:
    """Run a topology as a streaming job with its own options, which ``factory`` receives."""
    parsed = parse_arguments(kind, arguments, script=script, description=description)
    if parsed.trigger_interval and not parsed.continuous:
        sys.stderr.write("error: --trigger-interval goes with --continuous\n")
        sys.exit(2)
    return run_job(lambda known, stopping: _stream(lambda: factory(known), known, stopping), parsed)


def batch_main(arguments: Sequence[str], *, script: str, description: str | None) -> int:
    """Run a topology named on the command line over the retained records and return the exit code."""
    parsed = parse_arguments(BatchArguments, arguments, script=script, description=description)
    return run_job(_batch, parsed, exit_cut_off=EXIT_CUT_OFF)


def _stream(factory: TopologyFactory, parsed: TopologyStreamArguments, stopping: Event) -> None:
    from millrace_streams.runners.streaming_query import run_stream

    topology = factory()
    tables = _tables(parsed.table, topology)
    options = parsed.spark_options | pairs(parsed.option)
    if parsed.max_offsets_per_trigger is not None:
        options["maxOffsetsPerTrigger"] = str(parsed.max_offsets_per_trigger)
    checkpoint = parsed.checkpoint
    if checkpoint is None:
        if not tables:
            raise UsageError(
                "--checkpoint PATH is needed, because the topology writes no table that gives a default place"
            )
        checkpoint = f"{next(iter(tables.values())).rstrip('/')}-checkpoint"
    places = _places(tables, topology)
    root = os.path.dirname(checkpoint) or "."
    spark = start_spark(f"stream {places}", stopping, profile=parsed.profile, checkpoint_root=root)
    say(f"{_topics(topology)} at {parsed.servers} -> {places} (checkpoint {checkpoint})")
    total = _Total()
    query = run_stream(
        topology,
        spark,
        checkpoint=checkpoint,
        tables=tables,
        bootstrap_servers=parsed.servers,
        options=options,
        dead_letters=parsed.dead_letters,
        available_now=not parsed.continuous,
        interval=parsed.trigger_interval,
        on_batch=total.report,
        on_plan=say if parsed.explain else None,
    )
    follow(query, stopping)
    total.finish()


def _batch(parsed: BatchArguments, stopping: Event) -> None:
    from millrace_streams.runners.batch import run_batch

    topology = load_topology(parsed.topology)
    tables = _tables(parsed.table, topology)
    options = parsed.spark_options | pairs(parsed.option)
    for text, option in ((parsed.start, "startingTimestamp"), (parsed.end, "endingTimestamp")):
        if text is not None:
            options[option] = str(milliseconds_of(text))
    places = _places(tables, topology)
    spark = start_spark(f"backfill {places}", stopping)
    say(f"{_topics(topology)} at {parsed.servers} -> {places} (whole tables are replaced)")
    started = time.monotonic()
    with watched(spark, stopping):
        result = run_batch(
            topology,
            spark,
            tables=tables,
            bootstrap_servers=parsed.servers,
            options=options,
            dead_letters=parsed.dead_letters,
            on_plan=say if parsed.explain else None,
        )
    _say_total(result.records, result.dropped, time.monotonic() - started)
    for name, rows in result.rows.items():
        say(f"{name}: {rows:,} rows -> {tables.get(name, 'the topic')}")


class _Total:
    """Console report with a line per micro-batch and a final total."""

    def __init__(self) -> None:
        self._started = self._before = time.monotonic()
        self._records = self._dropped = 0

    def report(self, batch: BatchReport) -> None:
        now = time.monotonic()
        self._records += batch.records
        self._dropped += batch.dropped
        rows = ", ".join(f"{count:,} rows of {table}" for table, count in batch.rows.items())
        dropped = f", {batch.dropped:,} dropped" if batch.dropped else ""
        aside = f", {batch.dead_letters:,} put aside" if batch.dead_letters else ""
        say(
            f"batch {batch.batch_id}: {batch.records:,} records -> {rows}{dropped}{aside} in {now - self._before:.1f} s"
        )
        self._before = now

    def finish(self) -> None:
        _say_total(self._records, self._dropped, time.monotonic() - self._started)


def _say_total(records: int, dropped: int, seconds: float) -> None:
    late = f", {dropped:,} of them dropped (late, or without a key)" if dropped else ""
    say(f"{records:,} records in {seconds:.1f} s ({records / seconds:,.0f} records/s){late}")


def _tables(given: Sequence[str], topology: Topology) -> dict[str, str]:
    names = topology.tables
    if len(given) == 1 and len(names) == 1:
        name, separator, path = given[0].partition("=")
        return {names[0]: path if separator and name == names[0] else given[0]}
    for text in given:
        if "=" not in text:
            writes = f"writes {', '.join(names)}: give each as NAME=PATH" if names else "writes no table: leave it out"
            raise UsageError(f"--table {text}: the topology {writes}")
    return dict(text.split("=", 1) for text in given)


def _topics(topology: Topology) -> str:
    return ", ".join(dict.fromkeys(source.topic for source in topology.sources))


def _places(tables: Mapping[str, str], topology: Topology) -> str:
    topics = [f"topic {sink.destination}" for sink in topology.sinks if isinstance(sink, TopicSinkNode)]
    return ", ".join([*tables.values(), *topics])


def milliseconds_of(text: str) -> int:
    """Parse a time of the command line to ms since 1970: ISO 8601 (UTC without a zone), or milliseconds.

    Raises ``UsageError`` for anything else.
    """
    if text.isdecimal():
        return int(text)
    when = iso_time(text)
    if when is None:
        raise UsageError(f"{text!r} is not a time: write it as 2013-01-31T12:00")
    return round(when.timestamp() * 1000)


def _import(name: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        raise UsageError(f"no module {name} ({error}): give path/file.py, or set PYTHONPATH") from error


def _load_file(path: Path) -> ModuleType:
    if not path.is_file():
        raise UsageError(f"there is no file {path}")
    spec = importlib.util.spec_from_file_location(f"millrace_topology_{path.stem}", path)
    if spec is None or spec.loader is None:
        raise UsageError(f"{path} cannot be loaded as Python")
    module = importlib.util.module_from_spec(spec)
    sys.modules[module.__name__] = module
    spec.loader.exec_module(module)
    # Workers cannot import it by that name, so its functions are pickled by value.
    from pyspark import cloudpickle

    cloudpickle.register_pickle_by_value(module)
    return module
