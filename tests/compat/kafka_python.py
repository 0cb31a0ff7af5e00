"""Suite ``kafka_python``, the integration tests of kafka-python.

The tests come from its source distribution.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

from . import install, security
from .brokers import Listeners
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


_SECURED = '''\
"""Plugin of pytest by which tests with SASL and TLS take the running broker, in place of one of their own."""

import os

import py

from test.integration.fixtures import KafkaFixture


def running(broker_id, **options):
    sasl = options.get("transport", "").startswith("SASL")
    host, port = os.environ["COMPAT_SASL" if sasl else "COMPAT_SSL"].split(":")
    fixture = KafkaFixture(host, int(port), broker_id, external=True, **options)
    fixture.broker_user, fixture.broker_password = os.environ["COMPAT_USER"].split(":")
    fixture.ssl_dir = os.environ["COMPAT_CERTIFICATES"]
    fixture.tmp_dir = py.path.local.mkdtemp()
    return fixture


def tool_options(fixture):
    options = fixture.tmp_dir.join("client.properties")
    options.write(os.environ["COMPAT_CLIENT"])
    return ["--bootstrap-server", fixture.bootstrap_server(), "--command-config", options.strpath]


KafkaFixture.instance = running
KafkaFixture._cli_connect_args = tool_options
'''


def run(listeners: Listeners, kind: str, only: str) -> dict[str, Result]:
    """Run the tests against a broker without security, all or those that match ``only``."""
    arguments = ["test/integration", "--ignore-glob=*/test_s*_integration.py"]
    return _run(
        f"kafka_python-{kind}",
        arguments,
        only,
        KAFKA_URI=f"kafka://{listeners.plain}",
        KAFKA_ROOT=str(install.cache("no-kafka")),
    )


def run_secured(listeners: Listeners, kind: str, only: str) -> dict[str, Result]:
    """Run the tests with SASL and TLS, which would start brokers of their own, against a broker."""
    files = [f"test/integration/test_{name}_integration.py" for name in ("sasl", "ssl")]
    return _run(
        f"kafka_python_security-{kind}",
        ["-p", "test.secured", *files],
        only,
        COMPAT_SASL=listeners.sasl,
        COMPAT_SSL=listeners.ssl,
        COMPAT_USER=f"{security.USER}:{security.PASSWORD}",
        COMPAT_CERTIFICATES=str(listeners.certificates.folder),
        COMPAT_CLIENT=security.client_options("PLAIN"),
        KAFKA_ROOT=str(install.kafka()),
    )


def _run(name: str, arguments: list[str], only: str, **environment: str) -> dict[str, Result]:
    source = install.made_once(f"kafka_python-{_VERSION}", _download)
    python = install.virtual_environment(f"kafka_python-{_VERSION}-environment", source, *_REQUIREMENTS)
    results = run_pytest(
        python,
        [*arguments, "--quiet", "--timeout=120", *(["-k", only] if only else [])],
        cwd=source,
        name=name,
        seconds_max=1500,
        KAFKA_VERSION=_BROKER_VERSION,
        **environment,
    )
    return {re.sub(r"0x[0-9a-f]+", "", name): result for name, result in results.items()}


def _download(folder: Path) -> None:
    download = ["pip", "download", "--quiet", "--no-deps", "--no-binary=:all:", f"kafka-python=={_VERSION}"]
    install.run([sys.executable, "-m", *download], folder)
    install.run(["tar", "xzf", *folder.glob("*.tar.gz"), "--strip-components=1"], folder)
    (folder / "test" / "__init__.py").touch()
    (folder / "test" / "service.py").write_text(_SERVICE)
    (folder / "test" / "secured.py").write_text(_SECURED)
