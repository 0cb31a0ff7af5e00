"""Suite ``spark``, the tests of Spark's own Kafka source and sink (``spark_tests``)."""

from __future__ import annotations

import sys
from pathlib import Path

from benchmarks.peers import jars
from benchmarks.workspace import Workspace

from . import install
from .brokers import Listeners
from .ledger import Result
from .pytest_run import run_pytest

_ROOT = Path(__file__).parents[2]


def run(listeners: Listeners, kind: str, only: str) -> dict[str, Result]:
    """Run Spark's connector against a broker, all tests or those that match ``only``."""
    connector = jars.paths(jars.SPARK_KAFKA, Workspace(install.cache("spark")))
    arguments = ["tests/compat/spark_tests.py", "-q", "-p", "no:randomly", "-W", "default", "--timeout=600"]
    if only:
        arguments += ["-k", only]
    return run_pytest(
        sys.executable,
        arguments,
        cwd=_ROOT,
        name=f"spark-{kind}",
        seconds_max=2400,
        COMPAT_BOOTSTRAP=listeners.plain,
        COMPAT_SPARK_JARS=",".join(str(path) for path in connector),
    )
