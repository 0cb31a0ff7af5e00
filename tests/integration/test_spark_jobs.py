"""Tests of ``jobs/ingest_to_delta.py`` run as users run it.

It writes each row exactly once through kills, and fails with one sentence.
"""

import os
import re
import signal
import stat
import subprocess
import sys
import threading
import uuid
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from millrace.clients import Admin, Producer
from pyspark_millrace import spark_submit_command

from .waiting import STALL_S, eventually, exit_code, work_of

pytestmark = pytest.mark.spark

ROOT = Path(__file__).parents[2]
JOB = ROOT / "jobs" / "ingest_to_delta.py"
KEPT_VARIABLES = ("HOME", "JAVA_HOME", "MILLRACE_CACHE", "SPARK_SUBMIT_OPTS")


class Run:
    """A job in a process group of its own, with its output."""

    def __init__(self, command, **environment):
        # The environment is that of a new shell: no PYSPARK_PYTHON, no activated venv.
        kept = {name: os.environ[name] for name in KEPT_VARIABLES if name in os.environ}
        self.process = subprocess.Popen(
            [str(part) for part in command],
            env={"PATH": "/usr/local/bin:/usr/bin:/bin", **kept, **environment},
            cwd="/",
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        self.lines = []
        self._ended = False
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self):
        with self.process.stdout as output:
            for line in output:
                self.lines.append(line.rstrip("\n"))
        self._ended = True

    @property
    def output(self):
        return "\n".join(self.lines)

    def rows(self):
        return sum(int(n.replace(",", "")) for n in re.findall(r"^batch \d+: ([\d,]+) rows", self.output, re.MULTILINE))

    def await_rows(self, count):
        eventually(lambda: self.rows() >= count or self._ended, f"{count} rows", progress=self._progress, pause_s=0.05)
        assert self.rows() >= count, self.output

    def _progress(self):
        return len(self.lines), work_of(self.process.pid)

    def send(self, number):
        os.killpg(self.process.pid, number)

    def end(self):
        try:
            return exit_code(self.process)
        finally:
            if self.process.poll() is None:
                self.send(signal.SIGKILL)
            self._reader.join(STALL_S)


@pytest.fixture
def run():
    runs = []

    def start(command, **environment):
        runs.append(Run(command, **environment))
        return runs[-1]

    yield start
    for started in runs:
        if started.process.poll() is None:
            started.send(signal.SIGKILL)
            started.process.wait()


def ingest(broker, topic, table, *more):
    return [JOB, "--topic", topic, "--table", table, "--bootstrap-servers", broker.bootstrap_servers, *more]


def test_a_job_that_is_killed_and_stopped_ingests_every_row_once(module_broker, run, tmp_path):
    topic, table, count = f"ingest-{uuid.uuid4().hex[:8]}", tmp_path / "table", 12_000
    with Admin(module_broker.bootstrap_servers) as admin:
        schema = "n BIGINT NOT NULL, name STRING"
        admin.create_topic(topic, partitions=2, schema=schema, configs={"retention.ms": "-1"})

    def produce(numbers):
        with Producer(module_broker.bootstrap_servers) as producer:
            names = [f"name {number}" for number in numbers]
            producer.send_table(topic, pa.table({"n": pa.array(list(numbers), pa.int64()), "name": names}))
            producer.flush()

    produce(range(count))
    limited = ("--max-offsets-per-trigger", 2000)
    # spark-submit runs the documented command in an empty environment. Python and JVM are killed with -9.
    command = ingest(module_broker, topic, table, *limited)
    first = run(spark_submit_command(command[0], *map(str, command[1:])))
    first.await_rows(4000)
    first.send(signal.SIGKILL)
    first.end()
    assert first.rows() < count
    # Started again by Python alone, the job continues without an end until it is stopped.
    committed = len(rows_of(table))
    second = run([sys.executable, *ingest(module_broker, topic, table, *limited, "--continuous")])
    second.await_rows(1)
    produce(range(count, count + 500))
    second.await_rows(count + 500 - committed)
    second.process.send_signal(signal.SIGTERM)
    assert second.end() == 0, second.output
    assert "stopping" in second.output
    # Spark's daemon may write a traceback when the JVM drops an idle worker. Any other traceback is ours.
    assert "python_streaming_source_runner" not in second.output
    assert "error: " not in second.output
    assert rows_of(table) == [(number, f"name {number}") for number in range(count + 500)]


def rows_of(table):
    """Return the table as delta-rs reads it."""
    found = DeltaTable(str(table)).to_pyarrow_table().to_pydict()
    return sorted(zip(found["n"], found["name"], strict=True))


# --- refusals ------------------------------------------------------------------------------------------------


def test_invalid_options_give_an_error_of_one_sentence(module_broker, run, tmp_path):
    # Three calls of the job share one process, because Spark takes long to start.
    topic = f"there-{uuid.uuid4().hex[:8]}"
    with Admin(module_broker.bootstrap_servers) as admin:
        admin.create_topic(topic, partitions=1)
    calls = {
        "unknown topic": ["--topic", "nowhere", "--bootstrap-servers", module_broker.bootstrap_servers],
        "wrong option": [
            *("--topic", topic, "--bootstrap-servers", module_broker.bootstrap_servers),
            *("--option", "failOnDataLos=false"),
        ],
        "wrong offsets": [
            *("--topic", topic, "--bootstrap-servers", module_broker.bootstrap_servers),
            *("--starting-offsets", "first"),
        ],
        "no broker": [
            *("--topic", topic, "--bootstrap-servers", "127.0.0.1:1"),
            *("--option", "kafka.socket.connection.setup.timeout.ms=500"),
        ],
    }
    program = tmp_path / "calls.py"
    program.write_text(
        "import runpy\n"
        f"job = runpy.run_path({str(JOB)!r})\n"
        f"for name, arguments in {calls!r}.items():\n"
        f"    parsed = job['parse_arguments']([*arguments, '--table', {str(tmp_path / 'table')!r}])\n"
        "    code = job['run_job'](job['run'], parsed)\n"
        "    print(f'exit code {code}: {name}', flush=True)\n"
    )
    ran = run([sys.executable, program])
    assert ran.end() == 0
    for name in calls:
        assert f"exit code 1: {name}" in ran.lines
    errors = [line for line in ran.lines if line.startswith("error: ")]
    assert len(errors) == len(calls), ran.output
    assert errors[0] == "error: topic nowhere: no such topic or partition; create it first, or correct the options"
    assert "unknown option failondatalos='false': did you mean failOnDataLoss" in errors[1]
    assert "startingOffsets='first': expected one of: earliest, latest, JSON" in errors[2]
    assert "no broker answers at 127.0.0.1:1: start one with 'millrace broker'" in errors[3]
    assert "Traceback" not in ran.output
    assert "\tat " not in ran.output


def script(path, text):
    path.parent.mkdir(parents=True)
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(path.stat().st_mode | stat.S_IEXEC)
    return path


def test_a_too_old_java_is_refused_with_the_remedy(module_broker, run, tmp_path):
    script(tmp_path / "jdk" / "bin" / "java", "echo 'openjdk version \"11.0.2\" 2019-01-15' >&2")
    ran = run([sys.executable, *ingest(module_broker, "t", tmp_path / "table")], JAVA_HOME=str(tmp_path / "jdk"))
    assert ran.end() == 1
    assert "is Java 11, Spark needs 17: install a Java 17 or newer" in ran.output
    assert len(ran.lines) == 1


def test_unavailable_jars_give_an_error_of_one_sentence(module_broker, run, tmp_path):
    # The cache is empty, and no repository answers.
    ran = run(
        [sys.executable, *ingest(module_broker, "t", tmp_path / "table")],
        MILLRACE_CACHE=str(tmp_path / "cache"),
        DEFAULT_ARTIFACT_REPOSITORY="http://127.0.0.1:1/",
    )
    assert ran.end() == 1
    (error,) = ran.lines
    assert error.startswith("error: cannot resolve Delta's JARs (io.delta:delta-spark_4.2_2.13:4.4.0): unresolved")
    assert "let this machine reach Maven Central" in error
    assert "set MILLRACE_DELTA_JARS to it" in error


@pytest.mark.slow
def test_a_poisoned_maven_repository_does_no_harm(run, tmp_path):
    # Maven left a module's metadata and a truncated JAR. Spark's own ``--packages`` fails with these.
    module = tmp_path / "home" / ".m2" / "repository" / "org" / "slf4j" / "slf4j-api" / "2.0.13"
    module.mkdir(parents=True)
    (module / "slf4j-api-2.0.13.pom").write_text(
        "<project><modelVersion>4.0.0</modelVersion><groupId>org.slf4j</groupId>"
        "<artifactId>slf4j-api</artifactId><version>2.0.13</version></project>"
    )
    (module / "slf4j-api-2.0.13.jar").write_bytes(b"PK\x03\x04 cut")
    program = "from pyspark_millrace.environment.delta_jars import delta_jars as jars; print(*(x.name for x in jars()))"
    ran = run(
        [sys.executable, "-c", program],
        MILLRACE_CACHE=str(tmp_path / "cache"),
        SPARK_SUBMIT_OPTS=f"-Duser.home={tmp_path / 'home'}",
        **{name: value for name, value in os.environ.items() if name == "DEFAULT_ARTIFACT_REPOSITORY"},
    )
    assert ran.end() == 0, ran.output
    assert "delta-spark_4.2_2.13-4.4.0.jar" in ran.output
    assert "delta-storage-4.4.0.jar" in ran.output
