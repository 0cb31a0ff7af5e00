"""The frame of all jobs: command line, configuration file, progress, signals, exit codes.

A job is a script of ``jobs/``. Its options are given on the command line or, by the same names, in a properties file:
by default ``conf/jobs/<job>.properties`` beside ``jobs/``, if there is one. The command line counts more, and so does
``MILLRACE_BOOTSTRAP_SERVERS``. Exit codes: 0 done or stopped, 1 failed (the reason is on standard error), 2 wrong
arguments.
"""

from __future__ import annotations

import argparse
import difflib
import os
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from threading import Event
from types import FrameType
from typing import TYPE_CHECKING, Any, Final

from millrace.config.base import read_properties
from millrace.errors import InvalidConfigError, MillraceError

if TYPE_CHECKING:
    from pyspark.sql.streaming import StreamingQuery

BOOTSTRAP_VARIABLE: Final = "MILLRACE_BOOTSTRAP_SERVERS"
_POLL_SECONDS: Final = 0.2
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

    def add_stream_options(self) -> None:
        """Add the options of jobs that may go on for ever."""
        add = self.add_argument
        add("--continuous", action="store_true", help="go on until stopped, instead of ending with what is there")
        add(
            "--trigger-interval",
            default="1 second",
            help="time between micro-batches with --continuous (default: 1 second)",
        )
        add(
            "--profile",
            default="default",
            choices=["default", "low-latency"],
            help="session profile (default: default)",
        )

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


class Report:
    """Prints a line for each micro-batch that is written; ``rows`` is their sum."""

    def __init__(self) -> None:
        self.rows = 0
        self._last = -1

    def add(self, batch_id: int, rows: int, seconds: float) -> None:
        """A batch is done; told again, or without rows, it is passed over."""
        if batch_id <= self._last or not rows:
            return
        self._last = batch_id
        self.rows += rows
        say(f"batch {batch_id}: {rows:,} rows in {seconds:.1f} s ({rows / max(seconds, 0.001):,.0f} rows/s)")

    def add_progress(self, query: StreamingQuery) -> None:
        """What Spark has written since the last time."""
        for progress in query.recentProgress:
            milliseconds = progress["durationMs"].get("triggerExecution", 0)
            self.add(progress["batchId"], progress["numInputRows"], milliseconds / 1000)


def follow(
    query: StreamingQuery, stopping: Event, each_time: Callable[[StreamingQuery], None] = lambda query: None
) -> None:
    """Wait until the query ends or is to stop. Raises what it failed with."""
    while query.isActive and not stopping.is_set():
        stopping.wait(_POLL_SECONDS)
        each_time(query)
    if stopping.is_set() and query.isActive:
        say("stopping: what is not committed yet is read again by the next run")
        query.stop()
    else:
        query.awaitTermination()
    each_time(query)


def run_job(run: Callable[[Event], None]) -> int:
    """Run a job and return its exit code; the event is set by SIGTERM and Ctrl-C."""
    stopping = Event()

    def stop(number: int, frame: FrameType | None) -> None:
        stopping.set()

    signal.signal(signal.SIGTERM, stop)
    signal.signal(signal.SIGINT, stop)
    try:
        run(stopping)
    except MillraceError as error:
        complain(error.message)
        return 1
    except Exception as error:  # noqa: BLE001  whatever Spark raises is told in a sentence, and the exit code says it
        if stopping.is_set():
            # The signal stopped Spark as well, in the middle of a call. What is committed is committed.
            return 0
        from pyspark_millrace.spark_errors import explain

        complain(explain(error))
        return 1
    return 0


def say(text: str) -> None:
    """Print a line at once, so that it shows in a pipe as well."""
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def complain(reason: str) -> None:
    """Tell why the job failed."""
    sys.stderr.write(f"error: {reason}\n")
