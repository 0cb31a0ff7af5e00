"""What the documents tell a reader to type does what they say: their snippets are run as they stand.

Only the broker's address is another one, and the broker is there already.
"""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

import pytest

from millrace_broker.testing import EmbeddedBroker

from .waiting import run_to_end

ROOT = Path(__file__).resolve().parents[2]
_FENCE = re.compile(r"^```(\w+)\n(.*?)^```", re.MULTILINE | re.DOTALL)
_DONE_BEFORE = ("make ", "millrace broker")


def _snippets(document: str, language: str) -> list[str]:
    text = (ROOT / document).read_text()
    return [body for fence, body in _FENCE.findall(text) if fence == language]


def _run(command: list[str], broker: EmbeddedBroker, directory: Path, *, stdin: str | None = None) -> str:
    commands = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = {**os.environ, "PATH": commands, "MILLRACE_BOOTSTRAP_SERVERS": broker.bootstrap_servers}
    done = run_to_end(command, cwd=directory, env=environment, input=stdin)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def _run_python(snippets: list[str], broker: EmbeddedBroker, directory: Path) -> str:
    script = "\n".join(snippets).replace("localhost:9092", broker.bootstrap_servers)
    return _run([sys.executable, "-"], broker, directory, stdin=script)


def _run_the_readmes_commands(broker: EmbeddedBroker, directory: Path) -> str:
    (commands,) = [body for body in _snippets("README.md", "sh") if "millrace topics create" in body]
    lines = [line for line in commands.splitlines() if not line.startswith(_DONE_BEFORE)]
    return _run(["bash", "-e", "-o", "pipefail"], broker, directory, stdin="\n".join(lines))


def test_the_readmes_five_minutes(broker: EmbeddedBroker, tmp_path: Path) -> None:
    printed = _run_the_readmes_commands(broker, tmp_path)
    assert '"dep_delay": -3.0' in printed
    snippets = _snippets("README.md", "python")
    clients, group, spark, topology = snippets
    assert "pyspark_millrace" in spark
    printed = _run_python([clients, group, topology], broker, tmp_path)
    assert "LGA" in printed
    assert "Sub-topology: 0" in printed
    (described,) = [body for body in _snippets("README.md", "sh") if "millrace groups describe" in body]
    assert "flights" in _run(["bash", "-e"], broker, tmp_path, stdin=described)
    assert "12.5" in _run(
        ["bash", "-e"], broker, tmp_path, stdin="millrace consume late --from beginning --max-messages 1"
    )


@pytest.mark.spark
@pytest.mark.slow
def test_the_readmes_spark_query_writes_a_delta_table(broker: EmbeddedBroker, tmp_path: Path) -> None:
    _run_the_readmes_commands(broker, tmp_path)
    (query,) = [body for body in _snippets("README.md", "python") if "pyspark_millrace" in body]
    assert "JFK" in _run_python([query], broker, tmp_path)
    assert (tmp_path / "tables" / "flights" / "_delta_log").is_dir()


def test_the_clients_page(broker: EmbeddedBroker, tmp_path: Path) -> None:
    printed = _run_python(_snippets("docs/clients.md", "python"), broker, tmp_path)
    assert "__offset" in printed
    assert "'city': " in printed
