"""Recognizable secrets for tests, and a plugin that finds them.

The plugin fails a run that shows one of them. A test takes its passwords from :func:`planted`. Each of them has a
marker, which each run draws anew. The plugin also knows the private keys and the passwords in files that the run wrote.
It looks for all of them

* in all files below the run's temporary directory: logs of brokers and jobs, checkpoints, tables, metadata, event logs,
* in the output and the log of each test (with the fixture ``finest_log`` in the log of level ``DEBUG``),
* in the command lines that tests start, and with ``finest_log`` in those of all processes after each test.

``MAY_HOLD_SECRETS`` names the files whose purpose is to hold a secret. Compressed files are not decompressed.
"""

from __future__ import annotations

import base64
import hashlib
import os
import re
import secrets
import subprocess
import sys
from collections.abc import Iterator
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import pytest

SEED = "PLANTED_SECRETS_SEED"
"""The environment variable by which all processes of a run have the same marker. It does not contain the marker."""
MARKER = "planted" + hashlib.sha256(os.environ.setdefault(SEED, secrets.token_hex(8)).encode()).hexdigest()[:18]

MAY_HOLD_SECRETS = {
    "*.pem": "a key store has the private key",
    "*.p12": "a key store has the private key",
    "*.new": "a key store that is about to replace another",
    "*.properties": "the configuration of a broker, a client or a server has passwords, or is what references name",
    "*jaas.conf": "the login configuration of a Java process has passwords",
    "zookeeper.secret": "the password of brokers for ZooKeeper, which a reference names",
    "*.token": "a token of an OpenID provider, as Kubernetes projects it",
}
"""Patterns of the names of files that may hold a secret, each with the reason."""

_KEY = re.compile(rb"-----BEGIN (?:EC |RSA )?PRIVATE KEY-----\n(.*?)\n-----END", re.DOTALL)
_PASSWORD = re.compile(rb"""(?:password|secret)\s*=\s*"?([^\s";$]{16,})""")


def planted(name: str) -> str:
    """Return a secret that the check recognizes."""
    return f"{name}-{MARKER}"


def _as_base64(text: bytes) -> set[bytes]:
    """Return the characters that a text has in all Base64 texts with it, one for each position in a group of three."""
    found = set()
    for before in range(3):
        whole = base64.b64encode(bytes(before) + text)
        found.add(whole[-(-before * 8 // 6) : (before + len(text)) * 8 // 6])
    return found


PATTERNS = {MARKER.encode(), *_as_base64(MARKER.encode())}
"""The marker, and what it looks like in Base64."""


def has_planted(text: str) -> bool:
    """Return whether a text shows a planted secret."""
    return any(each.decode() in text for each in PATTERNS)


def files_with_secrets(directory: Path) -> list[Path]:
    """Return the files below a directory that show a secret and may not hold one."""
    sought = set(PATTERNS)
    for path in _files(directory):
        if path.suffix in {".pem", ".properties"}:
            content = path.read_bytes()
            sought.update(line for key in _KEY.findall(content) for line in key.splitlines() if len(line) > 40)
            sought.update(_PASSWORD.findall(content))
    command = ["grep", "-rlaFZ", "-f", "-", "--", directory]
    searched = subprocess.run(command, input=b"\n".join(sorted(sought)), capture_output=True, check=False)
    # Status 1: no file matches. Status 2: a file is gone or unreadable, such as the socket of a database.
    paths = [Path(os.fsdecode(each)) for each in searched.stdout.split(b"\0") if each]
    return sorted(path for path in paths if not any(fnmatch(path.name, each) for each in MAY_HOLD_SECRETS))


def _files(directory: Path) -> Iterator[Path]:
    for place, _, names in os.walk(directory):
        for name in names:
            path = Path(place, name)
            if path.is_file():
                yield path


def processes_with_secrets() -> list[str]:
    """Return the program and process id of each process whose command line shows a planted secret."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            arguments = path.read_bytes().split(b"\0")
        except (FileNotFoundError, ProcessLookupError):
            continue  # the process has ended
        if has_planted(os.fsdecode(b" ".join(arguments))):
            found.append(f"{os.fsdecode(arguments[0])} ({path.parent.name})")
    return found


@pytest.fixture
def finest_log(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """Log at level ``DEBUG`` in a test with secrets, and look at all command lines at its end."""
    caplog.set_level("DEBUG")
    caplog.set_level("INFO", logger="kafka")  # kafka-python logs all bytes that it sends, and is not ours
    yield
    assert processes_with_secrets() == [], "command lines show a secret"


def _refuse_on_command_line(event: str, arguments: tuple[Any, ...]) -> None:
    if event == "subprocess.Popen" and has_planted(repr(arguments[1])):
        raise AssertionError("A secret of a test is on the command line of a process, where everyone sees it.")


class ShownSecrets:
    """The plugin. A test whose output shows a secret fails, and a run whose files do."""

    def __init__(self) -> None:
        self._files: list[Path] = []

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, item: pytest.Item) -> Iterator[None]:
        report = yield
        places = [name for name, text in report.sections if has_planted(text)]
        if places and report.passed:
            report.outcome = "failed"
            report.longrepr = f"{item.nodeid} shows a secret: {', '.join(places)}"
        return report

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Look at all files that a run wrote, after the processes of pytest-xdist have ended."""
        if hasattr(session.config, "workerinput"):
            return
        # There is no public name for the directory outside of fixtures. pytest-xdist uses this one too.
        self._files = files_with_secrets(session.config._tmp_path_factory.getbasetemp())  # type: ignore[attr-defined]
        if self._files and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if self._files:
            terminalreporter.section("files that show a secret", red=True)
            for path in self._files:
                terminalreporter.line(str(path))


def pytest_configure(config: pytest.Config) -> None:
    """Register the plugin, and refuse secrets on command lines from now on."""
    config.pluginmanager.register(ShownSecrets())
    sys.addaudithook(_refuse_on_command_line)
