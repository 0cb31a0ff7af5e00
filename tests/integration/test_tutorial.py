"""Tests of the tutorial: its commands and programs run as they stand, page after page.

Only two lines are left out, which install the environment and start the broker. The test has both already.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from millrace_broker.testing import EmbeddedBroker

TUTORIAL = Path(__file__).resolve().parents[2] / "docs" / "tutorial"
PAGES = sorted(page.name for page in TUTORIAL.glob("[0-9]-*.md"))
_BLOCK = re.compile(r"^```(\w+)(?: title=\"([\w.]+)\")?\n(.*?)^```", re.MULTILINE | re.DOTALL)
_THERE_ALREADY = ("make setup", "millrace broker")


class Reader:
    """A user who types the tutorial's blocks, in one directory."""

    def __init__(self, broker: EmbeddedBroker, directory: Path) -> None:
        self._address = broker.bootstrap_servers
        self._directory = directory
        commands = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        self._environment = {**os.environ, "PATH": commands, "MILLRACE_BOOTSTRAP_SERVERS": self._address}

    def follow(self, page: str) -> str:
        """Run all blocks of a page and return their output. The programs of one page share one Python session."""
        blocks = [
            (language, title, body.replace("localhost:9092", self._address))
            for language, title, body in _BLOCK.findall((TUTORIAL / page).read_text())
        ]
        session = [body for language, title, body in blocks if language == "python" and not title]
        printed, seen = "", 0
        for language, title, body in blocks:
            if title:
                (self._directory / title).write_text(body)
            elif language == "sh":
                lines = [line for line in body.splitlines() if not line.startswith(_THERE_ALREADY)]
                printed += self._run(["bash", "-e", "-o", "pipefail"], "\n".join(lines) + "\n")
            else:
                seen += 1
                if seen == len(session):
                    printed += self._run([sys.executable, "-"], "\n".join(session))
        return printed

    def _run(self, command: list[str], script: str) -> str:
        done = subprocess.run(
            command,
            cwd=self._directory,
            env={**self._environment, "PYTHONPATH": str(self._directory)},
            input=script,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, script + done.stdout + done.stderr
        return done.stdout + done.stderr


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_the_tutorial_ends_with_a_proved_table_and_hourly_revenue(broker: EmbeddedBroker, tmp_path: Path) -> None:
    reader = Reader(broker, tmp_path)
    printed = {page: reader.follow(page) for page in PAGES}
    assert "refused, as it should be" in printed["1-first-topic.md"]
    assert "20003 orders" in printed["2-clients.md"]
    assert "orders of 49 and more" in printed["3-spark.md"]
    assert "proved: each range of offsets landed once" in printed["4-delta.md"]
    assert "Oslo" in printed["5-topology.md"]
