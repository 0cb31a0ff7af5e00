"""Worker process for measured code that has to be warm.

Usage: ``python -m benchmarks.worker MODULE:FUNCTION JSON``. The function is a context manager that takes the JSON's
values as keywords and yields ``run() -> dict``. For each line on standard input the worker calls ``run`` once and
prints its result as one line of JSON. The process ends at the end of the input.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import queue
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from benchmarks.workspace import BenchmarkError, Workspace, running, tail

START_SECONDS_MAX = 900  # most of this time is warm-up
RUN_SECONDS_MAX = 900
_MARK = "RESULT "  # Spark prints other lines too

Run = Callable[[], dict[str, Any]]


@contextlib.contextmanager
def worker(workspace: Workspace, name: str, target: str, arguments: dict[str, Any]) -> Iterator[Run]:
    """Start a worker and yield a function that makes it run once.

    ``name`` is that of its log, and ``target`` is ``module:function``.
    """
    command = [sys.executable, "-m", "benchmarks.worker", target, json.dumps(arguments)]
    with served(workspace, name, command) as run:
        yield run


@contextlib.contextmanager
def served(workspace: Workspace, name: str, command: Sequence[str | Path], **options: object) -> Iterator[Run]:
    """Start a process with a worker's protocol, in any language, and yield a function that makes it run once.

    The process prints ``RESULT {}`` when it is warm, and a line of ``RESULT`` and JSON for each line of its input.
    ``options`` are those of ``subprocess.Popen``.
    """
    log = workspace.log(name)
    with running(command, log, stdin=subprocess.PIPE, stdout=subprocess.PIPE, **options) as process:
        lines: queue.Queue[str | None] = queue.Queue()
        reader = threading.Thread(target=_read, args=(process, lines), daemon=True)
        reader.start()

        def answer(timeout: float) -> Any:
            try:
                line = lines.get(timeout=timeout)
            except queue.Empty:
                raise BenchmarkError(f"{name} gave no answer in {timeout:.0f} s:\n{tail(log)}") from None
            if line is None:
                raise BenchmarkError(f"{name} ended with code {process.wait()}:\n{tail(log)}")
            return json.loads(line)

        def run() -> dict[str, Any]:
            assert process.stdin
            process.stdin.write("run\n")
            process.stdin.flush()
            result: dict[str, Any] = answer(RUN_SECONDS_MAX)
            return result

        answer(START_SECONDS_MAX)
        yield run
        assert process.stdin
        process.stdin.close()
        process.wait(60)
        reader.join(60)


def _read(process: subprocess.Popen[str], lines: queue.Queue[str | None]) -> None:
    assert process.stdout
    with process.stdout as output:
        for line in output:
            if line.startswith(_MARK):
                lines.put(line.removeprefix(_MARK))
    lines.put(None)


def main() -> None:
    """Serve runs until the input ends."""
    target, arguments = sys.argv[1:]
    module, _, function = target.partition(":")
    job: Callable[..., AbstractContextManager[Run]] = getattr(importlib.import_module(module), function)
    with job(**json.loads(arguments)) as run:
        print(_MARK + "{}", flush=True)
        for _ in sys.stdin:
            print(_MARK + json.dumps(run()), flush=True)


if __name__ == "__main__":
    main()
