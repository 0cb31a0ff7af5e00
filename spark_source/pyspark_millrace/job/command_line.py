"""Options of jobs, on the command line or in properties files.

A job declares its options as a dataclass of ``JobArguments``, with an ``Option`` of typer for each::

    @dataclass(frozen=True, kw_only=True)
    class Arguments(SourceArguments, StreamArguments):
        topic: Annotated[str, Option(help="topic to read")]

The default file is ``conf/jobs/<job>.properties`` beside ``jobs/``, if it exists. The command line,
``MILLRACE_BOOTSTRAP_SERVERS`` and ``MILLRACE_CLIENT_CONFIG`` override the file.
"""

from __future__ import annotations

import difflib
import inspect
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, Field, dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, TypeVar, get_type_hints

import typer
from typer import Option
from typer.models import OptionInfo

from millrace.cli.secret_options import is_client_secret, refuse_secrets
from millrace.config.base import read_properties
from millrace.config.client import ClientConfig
from millrace.config.secrets import is_secret
from millrace.errors import InvalidConfigError, UsageError

if TYPE_CHECKING:
    from pyspark_millrace.delta import Compaction

BOOTSTRAP_VARIABLE: Final = "MILLRACE_BOOTSTRAP_SERVERS"
CONFIG_VARIABLE: Final = "MILLRACE_CLIENT_CONFIG"
_VARIABLES: Final = {"bootstrap-servers": BOOTSTRAP_VARIABLE, "client-config": CONFIG_VARIABLE}
"""Environment variables that override the file, by the options."""
_DEFAULT_SERVERS: Final = "localhost:9092"
_PAIR: Final = "NAME=VALUE"
_TRUE, _FALSE = "true", "false"


def _checked_pairs(given: list[str]) -> list[str]:
    for text in given:
        if "=" not in text:
            raise typer.BadParameter(f"expected {_PAIR}. The given text is not shown, because it may be a secret")
    return given


def pair_option(help_text: str) -> OptionInfo:
    """Describe an option of the form NAME=VALUE that can be repeated; see ``pairs``."""
    option: OptionInfo = Option(metavar=_PAIR, callback=_checked_pairs, help=f"{help_text}; repeatable")
    return option


def sql_option(help_text: str) -> OptionInfo:
    """Describe an option that takes Spark SQL."""
    option: OptionInfo = Option(metavar="SQL", help=help_text)
    return option


@dataclass(frozen=True, kw_only=True)
class JobArguments:
    """Options of all jobs."""

    bootstrap_servers: Annotated[str, Option(metavar="HOST:PORT,...", envvar=BOOTSTRAP_VARIABLE, help="brokers")] = (
        _DEFAULT_SERVERS
    )
    client_config: Annotated[
        Path | None,
        Option(
            metavar="FILE",
            envvar=CONFIG_VARIABLE,
            help="properties file of a client, such as one of millrace security init; its brokers replace the default",
        ),
    ] = None

    @property
    def client_options(self) -> dict[str, str]:
        """The options of ``ClientConfig``. A secret is a reference to the file, which must be on all machines."""
        if self.client_config is None:
            return {"bootstrap.servers": self.bootstrap_servers}
        file = self.client_config.absolute()
        known = ClientConfig.option_names()
        given = {name: value for name, value in read_properties(file).items() if name in known}
        options = {name: f"${{file:{file}:{name}}}" if is_secret(name) else value for name, value in given.items()}
        if self.bootstrap_servers != _DEFAULT_SERVERS or "bootstrap.servers" not in given:
            options["bootstrap.servers"] = self.bootstrap_servers
        return options

    @property
    def servers(self) -> str:
        """The brokers that the job uses."""
        return self.client_options["bootstrap.servers"]

    @property
    def spark_options(self) -> dict[str, str]:
        """The configuration of clients as options of ``format("millrace")``."""
        return {f"kafka.{name}": value for name, value in self.client_options.items()}


@dataclass(frozen=True, kw_only=True)
class SourceArguments(JobArguments):
    """Options of jobs that read topics."""

    columns: Annotated[
        str | None, Option(metavar="A,B,...", help="read only these columns (__offset, __timestamp, ... among them)")
    ] = None
    starting_offsets: Annotated[
        str, Option(metavar="WHERE", help="start of the first run: earliest, latest or JSON per partition")
    ] = "earliest"
    max_offsets_per_trigger: Annotated[
        int | None, Option(metavar="N", help="largest number of records in a micro-batch (default: all)")
    ] = None


@dataclass(frozen=True, kw_only=True)
class StreamArguments(JobArguments):
    """Options of jobs that can run continuously."""

    continuous: Annotated[
        bool, Option("--continuous", help="run until stopped, instead of ending after the present records")
    ] = False
    trigger_interval: Annotated[
        str | None, Option(metavar="TIME", help="time between micro-batches with --continuous")
    ] = "1 second"
    profile: Annotated[Literal["default", "low-latency"], Option(help="session profile")] = "default"


@dataclass(frozen=True, kw_only=True)
class CompactionArguments(JobArguments):
    """Options of jobs that write a Delta table.

    The options determine when small files are compacted.
    """

    compact_after: Annotated[
        int | None, Option(metavar="N", help="compact small files after this many batches (default: never)")
    ] = None
    compact_seconds: Annotated[
        float | None, Option(metavar="S", help="compact small files after this many seconds")
    ] = None
    compact_bytes: Annotated[
        int | None, Option(metavar="N", help="compact small files after this many added bytes")
    ] = None
    compact_target_bytes: Annotated[
        int | None, Option(metavar="N", help="size in bytes below which a file is small (default: 134217728)")
    ] = None


ArgumentsT = TypeVar("ArgumentsT", bound=JobArguments)


def parse_arguments(
    kind: type[ArgumentsT], arguments: Sequence[str], *, script: str, description: str | None
) -> ArgumentsT:
    """Parse the command line of a job and its file; exits with code 2 if either is wrong.

    ``script`` is the job's file. Its name and directory determine the default properties file.
    """
    path = Path(script).resolve()
    standard = path.parent.parent / "conf" / "jobs" / f"{path.stem}.properties"
    options = _options_of(kind)
    named = _config_in(arguments)
    file = Path(named) if named else standard
    try:
        given = _arguments_of(read_properties(file), file, options, path.name) if named or file.exists() else []
    except InvalidConfigError as error:
        sys.stderr.write(f"error: {error.message}\n")
        sys.exit(2)
    made: list[ArgumentsT] = []

    def take(parsed: ArgumentsT) -> None:
        _refuse_secrets(parsed, options, given)
        made.append(parsed)

    app = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)
    app.command(help=_unwrapped(description))(_function(kind, options, standard.name, take))
    try:
        app(args=[*given, *arguments], prog_name=path.name)
    except UsageError as error:
        sys.stderr.write(f"error: {error.message}\n")
        sys.exit(2)
    except SystemExit:
        # typer exits after success as well.
        if not made:
            raise
    return made[0]


def _refuse_secrets(
    parsed: JobArguments, options: Mapping[str, tuple[Field[Any], Any]], of_file: Sequence[str]
) -> None:
    """Raise ``UsageError`` if a pair of the command line is secret. Those of the file come first."""
    for name, (each, hint) in options.items():
        if _has_pairs(hint):
            before = sum(text.startswith(f"--{name}=") for text in of_file)
            refuse_secrets(
                pairs(getattr(parsed, each.name)[before:]),
                f"--{name}",
                is_secret=is_client_secret,
                file=f"in the file of --config, as {name}.<option>=<value>",
            )


def _has_pairs(hint: Any) -> bool:
    return any(getattr(each, "metavar", None) == _PAIR for each in hint.__metadata__)


def _options_of(kind: type[JobArguments]) -> dict[str, tuple[Field[Any], Any]]:
    """Return the dataclass fields by option name, with the types for typer."""
    hints = get_type_hints(kind, include_extras=True)
    found = {}
    # The job's own options come first.
    for each in sorted(fields(kind), key=lambda each: each.name not in kind.__annotations__):
        hint = hints[each.name]
        [option] = (extra for extra in hint.__metadata__ if isinstance(extra, OptionInfo))
        # In an annotation typer stores the first name of an option as its default.
        given = [name for name in (option.default, *(option.param_decls or ())) if isinstance(name, str)]
        name = given[0].removeprefix("--") if given else each.name.replace("_", "-")
        found[name] = (each, hint)
    return found


def _function(kind: type[ArgumentsT], options: Mapping[str, tuple[Field[Any], Any]], standard: str, take: Any) -> Any:
    """Build a function with a keyword per field, from which typer makes the command."""

    def command(config: str | None, **values: Any) -> None:
        take(kind(**values))

    config = Annotated[
        str | None,
        Option(metavar="FILE", help=f"file with options of this job (default: conf/jobs/{standard}, if it exists)"),
    ]
    keyword = inspect.Parameter.KEYWORD_ONLY
    parameters = [inspect.Parameter("config", keyword, default=None, annotation=config)]
    for each, hint in options.values():
        default = inspect.Parameter.empty if each.default is MISSING else each.default
        if each.default_factory is not MISSING:
            default = each.default_factory()
        parameters.append(inspect.Parameter(each.name, keyword, default=default, annotation=hint))
    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    command.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return command


def _unwrapped(description: str | None) -> str:
    """Return a description whose line breaks typer keeps."""
    return "\n\n".join(f"\b\n{paragraph}" for paragraph in inspect.cleandoc(description or "").split("\n\n"))


def _config_in(arguments: Sequence[str]) -> str | None:
    """Return the file of ``--config``, which is needed before the other options."""
    named = None
    for place, text in enumerate(arguments):
        if text == "--config" and place + 1 < len(arguments):
            named = arguments[place + 1]
        elif text.startswith("--config="):
            named = text.removeprefix("--config=")
    return named


def _arguments_of(
    properties: Mapping[str, str], file: Path, options: Mapping[str, tuple[Field[Any], Any]], job: str
) -> list[str]:
    """Convert a file's properties to arguments. Raises ``InvalidConfigError`` for unknown names."""
    arguments = []
    for name, value in properties.items():
        option, dot, inner = name.partition(".")
        hint = options[option][1] if option in options else None
        is_pair = hint is not None and _has_pairs(hint)
        if hint is None or bool(dot) != is_pair:
            near = difflib.get_close_matches(name, options, n=1)
            hint_text = f"did you mean {near[0]}?" if near else "the names are those of the command line, see --help"
            if is_pair and not dot:
                hint_text = f"its lines are {option}.NAME=VALUE"
            raise InvalidConfigError(f"{file}: {name} is not an option of {job}: {hint_text}")
        if _VARIABLES.get(option, "") in os.environ:
            continue
        if hint.__origin__ is bool:
            if value not in (_TRUE, _FALSE):
                raise InvalidConfigError(f"{file}: {name}={value}: expected true or false")
            arguments += [f"--{option}"] if value == _TRUE else []
        else:
            arguments.append(f"--{option}={inner}={value}" if dot else f"--{option}={value}")
    return arguments


def pairs(given: Sequence[str]) -> dict[str, str]:
    """Return the values of a ``pair_option``; the last value of a name counts."""
    return dict(text.split("=", 1) for text in given)


def trigger(arguments: StreamArguments) -> dict[str, Any]:
    """Return the arguments of ``DataStreamWriter.trigger`` for the options of a stream."""
    return {"processingTime": arguments.trigger_interval} if arguments.continuous else {"availableNow": True}


def compaction(arguments: CompactionArguments) -> Compaction | None:
    """Return the compaction plan, None without one. Raises ``UsageError`` for an invalid plan."""
    from pyspark_millrace.delta import Compaction

    when = (arguments.compact_after, arguments.compact_seconds, arguments.compact_bytes)
    if when == (None, None, None):
        return None
    plan: dict[str, Any] = dict(zip(("after_batches", "after_seconds", "after_bytes"), when, strict=True))
    if arguments.compact_target_bytes is not None:
        plan["target_bytes"] = arguments.compact_target_bytes
    return Compaction(**plan)


def names(text: str | None) -> tuple[str, ...]:
    """Split names at commas."""
    return tuple(name.strip() for name in text.split(",")) if text else ()


def source_options(arguments: SourceArguments, topic: str, further: Sequence[str]) -> dict[str, str]:
    """Return the source's options to read ``topic``; the pairs in ``further`` override them."""
    options = {
        **arguments.spark_options,
        "subscribe": topic,
        "startingOffsets": arguments.starting_offsets,
        "maxOffsetsPerTrigger": arguments.max_offsets_per_trigger,
        "columns": arguments.columns,
    }
    return {name: str(value) for name, value in options.items() if value is not None} | pairs(further)
