"""Suite ``kafka_python``: the integration tests of kafka-python, from its source distribution."""

from __future__ import annotations

import re
import sys
from pathlib import Path

from . import install
from .ledger import Result
from .pytest_run import run_pytest

_VERSION = "3.0.12"
_REQUIREMENTS = (
    "pytest==8.4.2",
    "pytest-mock==3.15.1",
    "pytest-timeout==2.4.0",
    "py==1.11.0",
    "lz4==4.4.4",
    "zstandard==0.25.0",
    "crc32c==2.7.1",
    "python-snappy==0.7.3",
)
_BROKER_VERSION = "4.3.0"
"""The version that the client infers from ApiVersions of a broker of ``install.KAFKA_VERSION``."""
_SERVICE = '''\
"""Stands for the module that starts brokers, which the source distribution lacks: the broker runs already."""


class ExternalService:
    def __init__(self, host, port):
        self.host, self.port = host, port

    def wait_for(self, *patterns, **options):
        return True

    def stop(self):
        pass

    def dump_logs(self):
        pass


class SpawnedService:
    pass
'''


def run(bootstrap: str, kind: str, only: str) -> dict[str, Result]:
    """Run the tests against a broker, all or those that match ``only``.

    Tests of TLS and SASL are left out, because they start brokers of their own.
    """
    source = install.made_once(f"kafka_python-{_VERSION}", _download)
    python = install.virtual_environment(f"kafka_python-{_VERSION}-environment", source, *_REQUIREMENTS)
    arguments = ["test/integration", "--quiet", "--ignore-glob=*/test_s*_integration.py", "--timeout=120"]
    if only:
        arguments += ["-k", only]
    results = run_pytest(
        python,
        arguments,
        cwd=source,
        name=f"kafka_python-{kind}",
        seconds_max=1500,
        KAFKA_URI=f"kafka://{bootstrap}",
        KAFKA_VERSION=_BROKER_VERSION,
        KAFKA_ROOT=str(install.cache("no-kafka")),
    )
    return {re.sub(r"0x[0-9a-f]+", "", name): result for name, result in results.items()}


def _download(folder: Path) -> None:
    download = ["pip", "download", "--quiet", "--no-deps", "--no-binary=:all:", f"kafka-python=={_VERSION}"]
    install.run([sys.executable, "-m", *download], folder)
    install.run(["tar", "xzf", *folder.glob("*.tar.gz"), "--strip-components=1"], folder)
    (folder / "test" / "__init__.py").touch()
    (folder / "test" / "service.py").write_text(_SERVICE)
