"""Code blocks of the documents, and a reader that runs them.

``RUN_BY`` names the test file that runs a page. ``NOT_RUN`` has the blocks that no test can run, with the reason.
"""

from __future__ import annotations

import contextlib
import io
import re
import runpy
import shlex
import signal
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from millrace.cli.main import main as run_millrace
from millrace.cli.paths import jobs_dir
from millrace_broker.testing import EmbeddedBroker

from .waiting import run_to_end

if TYPE_CHECKING:
    import pytest
    from pyspark.sql import SparkSession

ROOT = Path(__file__).resolve().parents[2]
_FENCE = re.compile(r'^```(python|sh)(?: title="([\w.]+)")?\n(.*?)^```', re.MULTILINE | re.DOTALL)

RUN_BY = {
    "README.md": "integration/test_guides.py",
    "docs/audit.md": "integration/test_spark_authorization_audit.py",
    "docs/authorization.md": "integration/test_acls.py",
    "docs/clients.md": "integration/test_guides.py",
    "docs/dynamic-configuration.md": "integration/test_dynamic_configs.py",
    "docs/delta.md": "integration/test_delta_writes.py",
    "docs/kafka-clients.md": "integration/test_kafka_client_cases.py",
    "docs/kafka-source-migration.md": "integration/test_guides.py",
    "docs/kafka-typed-topics.md": "integration/test_guides.py",
    "docs/quotas.md": "integration/test_quotas.py",
    "docs/schemas.md": "integration/test_guides.py",
    "docs/security.md": "integration/test_secure_cluster.py",
    "docs/spark.md": "integration/test_guides.py",
    "docs/streams/guide.md": "integration/test_guides.py",
    "docs/streams/latency.md": "integration/test_guides.py",
    "docs/tutorial/1-first-topic.md": "integration/test_tutorial.py",
    "docs/tutorial/2-clients.md": "integration/test_tutorial.py",
    "docs/tutorial/3-spark.md": "integration/test_tutorial.py",
    "docs/tutorial/4-delta.md": "integration/test_tutorial.py",
    "docs/tutorial/5-topology.md": "integration/test_tutorial.py",
}
"""The tests that run the Python and shell blocks of a page, below ``tests/``."""

NOT_RUN = {
    "make demo ": "tests/integration/test_demo.py runs the demo, and make test is the suite itself",
    "make setup  ": "commands of the repository, described by make help",
    "AWS_PROFILE=logs": "needs a bucket of Amazon S3; tests/integration/test_tiered_storage.py runs against a store",
    "millrace spark submit": "needs a Spark cluster; tests/integration/test_spark_cluster.py runs the command",
    "millrace cluster up --secure": "tests/integration/test_secure_cluster.py runs the section with a cluster",
    "from pathlib import Path\nfrom confluent_kafka": "tests/integration/test_secure_cluster.py runs it",
    "millrace security rotate --directory": "tests/integration/test_secure_cluster.py runs it",
    "export PYSPARK_PYTHON": "resolves packages from Maven; tests/integration/test_spark_jobs.py runs spark-submit",
}
"""First words of the blocks that no test runs, and the reason."""

_DONE_BEFORE = ("make setup", "millrace broker")
"""Commands that install the environment and start a broker. A test already has both."""
_OF_A_SHELL = re.compile(r"[|&<>]|\$[^(]")
_IN_A_SHELL = re.compile(r"<<|&$|\$!", re.MULTILINE)
"""Here-documents and background processes. Only one shell can run all lines of such a block."""


@dataclass(frozen=True, slots=True)
class Block:
    """A block of Python or of shell commands. A block with a title is a file."""

    language: str
    title: str
    body: str


def blocks(document: str) -> list[Block]:
    """Return the Python and shell blocks of a page that tests run."""
    found = [Block(*parts) for parts in _FENCE.findall((ROOT / document).read_text(encoding="utf-8"))]
    return [block for block in found if not block.body.startswith(tuple(NOT_RUN))]


class Reader:
    """A user who runs the blocks of pages.

    All blocks run in one directory, against one broker and one Spark session. A page without Spark needs no session.
    Blocks run as they stand, except for addresses and directories (``localhost:9092``, ``/data``, ``tables/``,
    ``checkpoints/``). Python runs in this process, so that ``session()`` gives the session of the tests, and so do
    commands without pipes and the like. The names of a page's Python blocks are shared, as in one Python session.
    """

    def __init__(
        self, broker: EmbeddedBroker, spark: SparkSession | None, directory: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        self.servers = {"bootstrap.servers": broker.bootstrap_servers}
        self.directory = directory
        self.names: dict[str, Any] = {}
        """The names of the last page's Python blocks."""
        self._spark = spark
        monkeypatch.chdir(directory)
        monkeypatch.syspath_prepend(str(directory))
        monkeypatch.setenv("PYTHONPATH", str(directory), prepend=":")
        monkeypatch.setenv("PATH", str(Path(sys.executable).parent), prepend=":")
        monkeypatch.setenv("MILLRACE_BOOTSTRAP_SERVERS", broker.bootstrap_servers)

    def follow(self, document: str) -> str:
        """Run the blocks of a page in their order, and return their output."""
        self.names = {"__name__": "__main__", "spark": self._spark}
        with contextlib.redirect_stdout(io.StringIO()) as printed:
            for block in blocks(document):
                body = self._moved(block.body)
                if block.title:
                    (self.directory / block.title).write_text(body)
                elif block.language == "python":
                    exec(compile(body, document, "exec", dont_inherit=True), self.names)
                    self._end_queries()
                else:
                    self.run(body)
        return printed.getvalue()

    def run(self, script: str) -> None:
        """Run shell commands, and print their output."""
        script = "".join(line for line in script.splitlines(keepends=True) if not line.startswith(_DONE_BEFORE))
        if _IN_A_SHELL.search(script):
            self._shell(script)
            return
        for line in script.replace("\\\n", " ").splitlines():
            words = shlex.split(line.replace("$(millrace paths jobs)", str(jobs_dir())), comments=True)
            if not words:
                continue
            if words[0] not in ("millrace", "python") or _OF_A_SHELL.search(line):
                self._shell(line)
            elif words[0] == "millrace":
                assert run_millrace(words[1:]) == 0, line
            else:
                self._program(words[1:])

    def _moved(self, text: str) -> str:
        """Put the broker and the directories of this test into a block."""
        text = text.replace("localhost:9092", self.servers["bootstrap.servers"])
        text = re.sub(r"(?<![\w.])/data\b", str(self.directory), text)
        return re.sub(r"(?<![\w/.])(tables|checkpoints)/", rf"{self.directory}/\1/", text)

    def _end_queries(self) -> None:
        for query in self._spark.streams.active if self._spark is not None else ():
            query.processAllAvailable()
            query.stop()

    def _program(self, arguments: list[str]) -> None:
        """Run a program of the user or a job. Programs change signal handlers and Spark's log level."""
        before, handlers = sys.argv, {each: signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM)}
        sys.argv = arguments
        status: object = None
        try:
            runpy.run_path(arguments[0], run_name="__main__")
        except SystemExit as end:
            status = end.code
        finally:
            sys.argv = before
            for each, handler in handlers.items():
                signal.signal(each, handler)
            if self._spark is not None:
                self._spark.sparkContext.setLogLevel("OFF")
        assert not status, arguments

    def _shell(self, script: str) -> None:
        done = run_to_end(["bash", "-e", "-o", "pipefail"], input=script, cwd=self.directory)
        assert done.returncode == 0, script + done.stdout + done.stderr
        sys.stdout.write(done.stdout + done.stderr)
