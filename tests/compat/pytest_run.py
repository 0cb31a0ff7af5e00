"""One run of pytest in another process, with its results."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from pathlib import Path

from . import install
from .ledger import Result, results_of_junit


class SuiteError(Exception):
    """A suite that could not run. The message has the end of its output."""


def run_pytest(
    python: str | Path, arguments: Sequence[str | Path], *, cwd: Path, name: str, seconds_max: int, **environment: str
) -> dict[str, Result]:
    """Run pytest and return the result of each test. Raises ``SuiteError`` if pytest gives no results."""
    logs = install.cache("logs")
    report, log = logs / f"{name}.xml", logs / f"{name}.log"
    report.unlink(missing_ok=True)
    command = [python, "-m", "pytest", "-p", "no:cacheprovider", f"--junitxml={report}", *arguments]
    with log.open("w") as output:
        try:
            subprocess.run(
                [str(word) for word in command],
                cwd=cwd,
                env=os.environ | environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                timeout=seconds_max,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise SuiteError(f"{name} did not end within {seconds_max} s: read {log}") from None
    if not report.exists():
        raise SuiteError(f"{name} has no results:\n{log.read_text(errors='replace')[-2000:]}")
    return results_of_junit(report)
