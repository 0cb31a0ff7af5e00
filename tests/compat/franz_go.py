"""Suite ``franz_go``, the broker tests of franz-go's client.

The suite has those tests of the client's Go module that need a broker.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from pathlib import Path

from . import install
from .brokers import Listeners
from .ledger import Result
from .pytest_run import SuiteError

_VERSION = "v1.22.3"
_RECORDS = "50000"
"""Records of each chain of consumers, a tenth of what the maker runs."""
_SECONDS_MAX = 900
_FUNCTION = re.compile(r"^func (Test\w+)\(t \*testing\.T\) \{\n(.*?)^\}", re.MULTILINE | re.DOTALL)
_NEEDS_BROKER = re.compile(r"\b(?:newTestClient|getSeedBrokers|testClientOpts|tmpTopic|adm)\w*\(")
_OUTCOME = re.compile(r"^ *--- (PASS|FAIL|SKIP): (\S+) ")
_REASON = re.compile(r"_test\.go:\d+: (.*)")
_STATES = {"PASS": "pass", "FAIL": "fail", "SKIP": "skip"}


def run(listeners: Listeners, kind: str, only: str) -> dict[str, Result]:
    """Run the tests against a broker, all or those that match ``only``."""
    folder = install.made_once(f"franz-go-{_VERSION}", _build)
    package = folder / "source" / "pkg" / "kgo"
    names = only or f"^({'|'.join(_tests(package))})$"
    log = install.cache("logs") / f"franz_go-{kind}.log"
    with log.open("w") as output:
        try:
            subprocess.run(
                [folder / "kgo.test", "-test.v", f"-test.timeout={_SECONDS_MAX}s", f"-test.run={names}"],
                cwd=package,
                env=os.environ
                | {
                    "KGO_SEEDS": listeners.plain,
                    "KGO_TEST_RF": "1",
                    "KGO_TEST_RECORDS": _RECORDS,
                    "KGO_LOG_LEVEL": "none",
                },
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                timeout=2 * _SECONDS_MAX,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise SuiteError(f"franz_go did not end within {2 * _SECONDS_MAX} s: read {log}") from None
    results = _results(log.read_text(errors="replace"))
    if not results:
        raise SuiteError(f"franz_go has no results: read {log}")
    return results


def _tests(package: Path) -> list[str]:
    """Return the tests that use a broker; the others are of the client alone."""
    sources = [path.read_text("utf-8") for path in sorted(package.glob("*_test.go"))]
    return [name for source in sources for name, body in _FUNCTION.findall(source) if _NEEDS_BROKER.search(body)]


def _results(output: str) -> dict[str, Result]:
    """Return the result of each test and subtest. The reasons are the lines of a test before its outcome."""
    results: dict[str, Result] = {}
    reason = ""
    for line in output.splitlines():
        if found := _REASON.search(line):
            reason = reason or found[1]
        if found := _OUTCOME.match(line):
            state = _STATES[found[1]]
            results[found[2]] = Result(state, reason if state == "fail" else "")
            reason = ""
    return results


def _build(folder: Path) -> None:
    module = f"github.com/twmb/franz-go@{_VERSION}"
    go = {"GOPATH": str(install.cache("go")), "GOFLAGS": "-mod=mod"}
    downloaded = json.loads(install.run(["go", "mod", "download", "-json", module], folder, **go))
    shutil.copytree(downloaded["Dir"], folder / "source")
    install.run(["chmod", "-R", "u+w", folder / "source"])
    install.run(["go", "test", "-c", "-o", folder / "kgo.test", "./pkg/kgo"], folder / "source", **go)
