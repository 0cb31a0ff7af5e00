"""Kafka's command-line tools, most of them in one JVM (``Tools.java``)."""

from __future__ import annotations

import os
import struct
import subprocess
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

_SOURCE = Path(__file__).with_name("Tools.java")
_INT = struct.Struct(">i")
_OPTIONS = ("-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xmx600m")
_ALONE = ("VerifiableProducer", "VerifiableConsumer", "VerifiableShareConsumer", "TransactionalMessageCopier")
"""Tools that write results when their JVM ends, or that end it themselves."""
SECONDS_MAX = 90
"""The time for one tool."""


@dataclass(frozen=True, slots=True)
class Ended:
    """A tool that has ended, with its exit code and its output."""

    code: int
    stdout: str
    stderr: str


class KafkaTools:
    """A JVM that runs Kafka's tools. It is started again after a tool that did not end in time."""

    def __init__(self, home: Path, *options: str) -> None:
        """``options`` are those of the JVM."""
        self._home = home
        self._options = options
        self._process: subprocess.Popen[bytes] | None = None

    def run(self, main: str, arguments: Sequence[str], input: str = "") -> Ended:
        """Run the main method of a class. Raises ``TimeoutError`` after ``SECONDS_MAX``."""
        if main.endswith(_ALONE):
            return self._run_alone(main, arguments)
        process = self._process or self._started()
        assert process.stdin is not None
        assert process.stdout is not None
        words = [main.encode(), *(argument.encode() for argument in arguments)]
        request = [_framed(words[0]), _INT.pack(len(arguments)), *map(_framed, words[1:]), _framed(input.encode())]
        timer = threading.Timer(SECONDS_MAX, process.kill)
        timer.start()
        try:
            process.stdin.write(b"".join(request))
            process.stdin.flush()
            (code,) = _INT.unpack(_read(process.stdout, _INT.size))
            return Ended(code, _text(process.stdout), _text(process.stdout))
        except (BrokenPipeError, EOFError):
            self.close()
            raise TimeoutError(f"{main} did not end within {SECONDS_MAX} s") from None
        finally:
            timer.cancel()

    def _run_alone(self, main: str, arguments: Sequence[str]) -> Ended:
        command = [self._home / "bin" / "kafka-run-class.sh", main, *arguments]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS_MAX, check=False)
        except subprocess.TimeoutExpired:
            raise TimeoutError(f"{main} did not end within {SECONDS_MAX} s") from None
        return Ended(done.returncode, done.stdout, done.stderr)

    def close(self) -> None:
        """End the JVM."""
        if self._process:
            self._process.kill()
            self._process.wait()
            self._process = None

    def _started(self) -> subprocess.Popen[bytes]:
        quiet = f"-Dlog4j2.configurationFile={self._home}/config/quiet.properties"
        command = ["java", *_OPTIONS, *self._options, quiet, "-cp", f"{self._home}/libs/*", str(_SOURCE)]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=os.environ)
        return self._process


def _framed(data: bytes) -> bytes:
    return _INT.pack(len(data)) + data


def _text(stream: IO[bytes]) -> str:
    (size,) = _INT.unpack(_read(stream, _INT.size))
    return _read(stream, size).decode(errors="replace")


def _read(stream: IO[bytes], size: int) -> bytes:
    data = stream.read(size)
    if len(data) < size:
        raise EOFError
    return data
