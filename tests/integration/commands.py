"""The ``millrace`` command in the process of the tests.

A run gives its exit code and its output. A process of its own takes 0.9 s of CPU time for each command, nearly all of
it for imports. A test starts one only if it is about the process itself: its imports, its signals, or output that is
read while it runs.
"""

from __future__ import annotations

import contextlib
import io
import os
import subprocess
import sys
from collections.abc import Mapping
from typing import Any
from unittest import mock

from millrace.cli.main import main

_PIPE_BYTES = 65536
_PIPED = {"COLUMNS": "80", "NO_COLOR": "1"}
"""The environment of a command whose output is no terminal."""


class _Pipe(io.RawIOBase):
    """An input that gives at most as much as a pipe holds."""

    def __init__(self, data: bytes) -> None:
        super().__init__()
        self._left = memoryview(data)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        """Read into the whole buffer, but at most as much as a pipe holds."""
        taken = self._left[: min(len(buffer), _PIPE_BYTES)]
        buffer[: len(taken)] = taken
        self._left = self._left[len(taken) :]
        return len(taken)


def run_millrace(
    *arguments: object, stdin: str = "", environment: Mapping[str, str] | None = None, code: int = 0
) -> subprocess.CompletedProcess[str]:
    """Run a command as its process would, and check its exit code. Raises errors that are not millrace's."""
    out, err = (io.TextIOWrapper(io.BytesIO(), "utf-8", write_through=True) for _ in range(2))
    given = [str(argument) for argument in arguments]
    with (
        mock.patch.dict(os.environ, {**_PIPED, **(environment or {})}),
        mock.patch.object(sys, "stdin", io.TextIOWrapper(io.BufferedReader(_Pipe(stdin.encode())), "utf-8")),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
    ):
        returned = main(given)
    printed, errors = (stream.buffer.getvalue().decode() for stream in (out, err))  # type: ignore[attr-defined]
    assert returned == code, printed + errors
    assert "Traceback" not in errors
    return subprocess.CompletedProcess(["millrace", *given], returned, printed, errors)
