"""Suite ``clients``, the programs of ``docs/kafka-clients.md``.

The suite runs each section of the page as it stands. A section has files (blocks with a title) and a script: its block
of shell commands, or its program in Python.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from benchmarks.workspace import free_port

from . import install
from .brokers import Listeners, broker
from .ledger import Result

PAGE = Path(__file__).parents[2] / "docs" / "kafka-clients.md"
_SECTION = re.compile(r"^## (.+?)\n(.*?)(?=^## |\Z)", re.MULTILINE | re.DOTALL)
_BLOCK = re.compile(r'^```(\w+)(?: title="([\w.]+)")?\n(.*?)^```', re.MULTILINE | re.DOTALL)
_OTHER_CLUSTER = "kafka.example.com:9092"
_NODE = Path("/usr")
"""The folder of a Debian package's headers of Node, which compiled packages need."""
_SECONDS_MAX = 900
"""The time of a program with its installation."""


@dataclass(frozen=True, slots=True)
class Case:
    """A section of the page, with ``files`` by name and a script."""

    name: str
    text: str
    files: Mapping[str, str]
    shell: str
    python: str

    @property
    def is_python(self) -> bool:
        """True if the section is a program in Python for the packages of the tests."""
        return bool(self.python)


def cases() -> list[Case]:
    """Return the sections of the page."""
    found = []
    for name, text in _SECTION.findall(PAGE.read_text(encoding="utf-8")):
        blocks = _BLOCK.findall(text)
        files = {title: body for _, title, body in blocks if title}
        scripts = {language: body for language, title, body in blocks if not title}
        found.append(Case(name, text, files, scripts.get("sh", ""), scripts.get("python", "")))
    return found


def run(listeners: Listeners, kind: str, only: str) -> dict[str, Result]:
    """Run the programs against a broker, all or those whose names match ``only``."""
    results = {}
    for case in cases():
        if re.search(only, case.name, re.IGNORECASE):
            results[case.name] = _run(case, listeners.plain, kind)
            print(f"  {case.name}: {results[case.name].state}", flush=True)
    return results


def _run(case: Case, bootstrap: str, kind: str) -> Result:
    with contextlib.ExitStack() as opened:
        addresses = {"localhost:9092": bootstrap, "localhost:8083": f"127.0.0.1:{free_port()}"}
        if _OTHER_CLUSTER in case.text:
            addresses[_OTHER_CLUSTER] = opened.enter_context(
                broker("kafka" if kind == "millrace" else "millrace")
            ).plain
        return _run_files(case, kind, addresses)


def _run_files(case: Case, kind: str, addresses: Mapping[str, str]) -> Result:
    """Run a case in its folder, which keeps what its script installs."""

    def with_addresses(text: str) -> str:
        for documented, real in addresses.items():
            text = text.replace(documented, real)
        return text

    name = re.sub(r"\W+", "-", case.name.lower())
    folder = install.cache(f"clients/{name}")
    for file, body in case.files.items():
        (folder / file).write_text(with_addresses(body))
    if case.is_python:
        (folder / "orders.py").write_text(with_addresses(case.python))
        command = [sys.executable, "orders.py"]
    else:
        command = ["bash", "-e", "-o", "pipefail", "-c", with_addresses(case.shell)]
    log = install.cache("logs") / f"{name}-{kind}.log"
    with log.open("w") as output:
        process = subprocess.Popen(
            command,
            cwd=folder,
            env=_environment(),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            process.wait(_SECONDS_MAX)
            end = f"ended with {process.returncode}"
        except subprocess.TimeoutExpired:
            end = f"did not end within {_SECONDS_MAX} s"
        finally:
            with contextlib.suppress(ProcessLookupError):  # the script and what it left in the background
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    if process.returncode == 0:
        return Result("pass")
    return Result("fail", f"{end}: {log.read_text(errors='replace')[-300:]}")


def _environment() -> dict[str, str]:
    added = {
        "PATH": f"{install.kafka() / 'bin'}:{os.environ['PATH']}",
        "MAVEN_OPTS": f"{os.environ.get('MAVEN_OPTS', '')} {install.maven_repository()}".strip(),
    }
    if (_NODE / "include" / "node").exists():
        added["npm_config_nodedir"] = str(_NODE)  # npm would download the headers from elsewhere than the registry
    return os.environ | added
