"""A job's options: on the command line or, by the same names, in a properties file.

The file is ``conf/jobs/<job>.properties`` beside ``jobs/``, if there is one and no other is named. The command line
counts more, and so does ``MILLRACE_BOOTSTRAP_SERVERS``.
"""

from __future__ import annotations

import argparse
import difflib
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from millrace.config.base import read_properties
from millrace.errors import InvalidConfigError

if TYPE_CHECKING:
    from pyspark_millrace.delta import Compaction

BOOTSTRAP_VARIABLE: Final = "MILLRACE_BOOTSTRAP_SERVERS"
_TRUE, _FALSE = "true", "false"


class JobParser(argparse.ArgumentParser):
    """A command line whose options may stand in a file: ``name=value``, ``flag=true``, ``option.NAME=VALUE``."""

    def __init__(self, script: str, description: str | None) -> None:
        """``script`` is the job's file, by whose name and place its configuration is found."""
        path = Path(script).resolve()
        super().__init__(prog=path.name, description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
        self._standard = path.parent.parent / "conf" / "jobs" / f"{path.stem}.properties"
        self.add_argument(
            "--config",
            metavar="FILE",
            help=f"file with options of this job (default: conf/jobs/{self._standard.name}, if it is there)",
        )

    def add_bootstrap_servers(self) -> None:
        """Add the option that says where the brokers are."""
        self.add_argument(
            "--bootstrap-servers",
            default=os.environ.get(BOOTSTRAP_VARIABLE, "localhost:9092"),
            metavar="HOST:PORT,...",
            help=f"brokers (default: {BOOTSTRAP_VARIABLE}, else localhost:9092)",
        )

    def add_source_options(self, option: str = "--option") -> None:
        """Add the options of jobs that read topics, ``option`` for those without a name of their own."""
        add = self.add_argument
        add("--columns", metavar="A,B,...", help="read only these columns (__offset, __timestamp, ... among them)")
        add(
            "--starting-offsets",
            default="earliest",
            metavar="WHERE",
            help="where the first run starts: earliest, latest or JSON per partition (default: earliest)",
        )
        add("--max-offsets-per-trigger", type=int, metavar="N", help="most records in a micro-batch (default: all)")
        self.add_pairs(option, "further option of the source; repeatable")

    def add_stream_options(self, interval: str | None = "1 second") -> None:
        """Add the options of jobs that may go on for ever, with this time between micro-batches unless told."""
        add = self.add_argument
        add("--continuous", action="store_true", help="go on until stopped, instead of ending with what is there")
        add(
            "--trigger-interval",
            default=interval,
            metavar="TIME",
            help=f"time between micro-batches with --continuous (default: {interval or 'no pause'})",
        )
        add(
            "--profile",
            default="default",
            choices=["default", "low-latency"],
            help="session profile (default: default)",
        )

    def add_compaction_options(self) -> None:
        """Add the options of jobs that write a Delta table, for ``compaction``."""
        add = self.add_argument
        when = "put small files together after so many"
        add("--compact-after", type=int, metavar="N", help=f"{when} batches (default of all three: never)")
        add("--compact-seconds", type=float, metavar="S", help=f"{when} seconds")
        add("--compact-bytes", type=int, metavar="N", help=f"{when} bytes that were added")
        add("--compact-target-bytes", type=int, metavar="N", help="files smaller than this are small (134217728)")

    def add_pairs(self, name: str, help_text: str) -> None:
        """Add an option that is given as NAME=VALUE any number of times; see ``pairs``."""
        self.add_argument(name, action="append", default=[], metavar="NAME=VALUE", type=_pair, help=help_text)

    def parse(self, arguments: Sequence[str]) -> argparse.Namespace:
        """Read the command line, and the file under it; exits with code 2 when either is wrong."""
        known, _ = self._config_parser().parse_known_args(arguments)
        file = Path(known.config) if known.config else self._standard
        if not known.config and not file.exists():
            return self.parse_args(arguments)
        try:
            given = self._arguments_of(read_properties(file), file)
        except InvalidConfigError as error:
            self.error(error.message)
        return self.parse_args([*given, *arguments])

    def _config_parser(self) -> argparse.ArgumentParser:
        parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
        parser.add_argument("--config")
        return parser

    def _arguments_of(self, properties: Mapping[str, str], file: Path) -> list[str]:
        """A file's lines as arguments. Raises ``InvalidConfigError`` for names that are no options."""
        options = {name: action for name, action in self._option_string_actions.items() if name not in ("-h", "--help")}
        arguments = []
        for name, value in properties.items():
            option, dot, inner = name.partition(".")
            action = options.get(f"--{option}")
            if action is None or bool(dot) != (action.metavar == "NAME=VALUE") or option == "config":
                near = difflib.get_close_matches(name, [known.removeprefix("--") for known in options], n=1)
                hint = f"did you mean {near[0]}?" if near else "the names are those of the command line, see --help"
                raise InvalidConfigError(f"{file}: {name}={value} is no option of {self.prog}: {hint}")
            if option == "bootstrap-servers" and BOOTSTRAP_VARIABLE in os.environ:
                continue
            if action.nargs == 0:
                if value not in (_TRUE, _FALSE):
                    raise InvalidConfigError(f"{file}: {name}={value}: expected true or false")
                arguments += [f"--{option}"] if value == _TRUE else []
            else:
                arguments.append(f"--{option}={inner}={value}" if dot else f"--{option}={value}")
        return arguments


def _pair(text: str) -> tuple[str, str]:
    name, separator, value = text.partition("=")
    if not separator:
        raise argparse.ArgumentTypeError(f"{text}: expected NAME=VALUE")
    return name, value


def pairs(given: Sequence[tuple[str, str]]) -> dict[str, str]:
    """What ``add_pairs`` read, the last of each name."""
    return dict(given)


def trigger(arguments: argparse.Namespace) -> dict[str, Any]:
    """What ``DataStreamWriter.trigger`` takes, by the options of a stream."""
    return {"processingTime": arguments.trigger_interval} if arguments.continuous else {"availableNow": True}


def compaction(arguments: argparse.Namespace) -> Compaction | None:
    """When small files are to be put together, by the options. Raises ``UsageError`` for what is no plan."""
    from pyspark_millrace.delta import Compaction

    when = (arguments.compact_after, arguments.compact_seconds, arguments.compact_bytes)
    if when == (None, None, None):
        return None
    plan = dict(zip(("after_batches", "after_seconds", "after_bytes"), when, strict=True))
    if arguments.compact_target_bytes is not None:
        plan["target_bytes"] = arguments.compact_target_bytes
    return Compaction(**plan)


def names(text: str | None) -> tuple[str, ...]:
    """Names separated by commas."""
    return tuple(name.strip() for name in text.split(",")) if text else ()


def source_options(arguments: argparse.Namespace, topic: str, further: Sequence[tuple[str, str]]) -> dict[str, str]:
    """The source's options to read ``topic``, by those of the command line."""
    options = {
        "kafka.bootstrap.servers": arguments.bootstrap_servers,
        "subscribe": topic,
        "startingOffsets": arguments.starting_offsets,
        "maxOffsetsPerTrigger": arguments.max_offsets_per_trigger,
        "columns": arguments.columns,
    }
    return {name: str(value) for name, value in options.items() if value is not None} | pairs(further)
