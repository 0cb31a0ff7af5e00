"""Suite ``tools``, Kafka's command-line tools and verifiable clients.

The tests are in ``tools_tests`` and others.
"""

from __future__ import annotations

import sys
from pathlib import Path

from . import install
from .brokers import Listeners
from .ledger import Result
from .pytest_run import run_pytest

_ROOT = Path(__file__).parents[2]


def run(listeners: Listeners, kind: str, only: str) -> dict[str, Result]:
    """Run the tools against a broker, all tests or those that match ``only``."""
    files = [f"tests/compat/{name}tools_tests.py" for name in ("", "configs_", "security_")]
    arguments = [*files, "-q", "-p", "no:randomly", "-W", "default", "--timeout=180"]
    if only:
        arguments += ["-k", only]
    return run_pytest(
        sys.executable,
        arguments,
        cwd=_ROOT,
        name=f"tools-{kind}",
        seconds_max=2400,
        COMPAT_BOOTSTRAP=listeners.plain,
        COMPAT_SASL=listeners.sasl,
        COMPAT_SSL=listeners.ssl,
        COMPAT_STORES=str(listeners.certificates.folder),
        COMPAT_TOKENS=f"{listeners.provider.url}/token",
        COMPAT_KAFKA_HOME=str(install.kafka()),
    )
