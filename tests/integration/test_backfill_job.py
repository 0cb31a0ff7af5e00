"""Tests of progress and stop of ``jobs/backfill.py``.

The tests run the job as users run it. A stop leaves the table unchanged.
"""

import re
import signal
import subprocess
import sys
import uuid
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from millrace.clients import Admin, Producer

from .waiting import eventually, output_of, work_of

pytestmark = pytest.mark.spark

JOB = Path(__file__).parents[2] / "jobs" / "backfill.py"
TOPOLOGY = """
import threading
from pathlib import Path

from millrace_streams import StreamsBuilder


def held(value):
    Path({reached!r}).touch()
    threading.Event().wait()
    return value


def topology():
    builder = StreamsBuilder()
    builder.stream({topic!r}, key="string", value="string").map_values(held).to_delta("words")
    return builder.build()
"""


@pytest.fixture
def start(module_broker, tmp_path):
    """Start the job over a topic with one word that blocks the topology."""
    topic, started = f"words-{uuid.uuid4().hex[:8]}", []
    with Admin(module_broker.bootstrap_servers) as admin:
        admin.create_topic(topic, partitions=1, configs={"retention.ms": "-1"})
    with Producer(module_broker.bootstrap_servers) as producer:
        producer.send(topic, b"word", key=b"key")

    def run():
        file = tmp_path / "held_topology.py"
        file.write_text(TOPOLOGY.format(topic=topic, reached=str(tmp_path / "reached")))
        arguments = ["--topology", file, "--table", tmp_path / "table"]
        command = [sys.executable, JOB, *arguments, "--bootstrap-servers", module_broker.bootstrap_servers]
        started.append(
            subprocess.Popen(list(map(str, command)), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        )
        return started[-1]

    yield run
    for job in started:
        job.kill()
        job.wait()


def ended(job):
    output, _ = output_of(job)
    return job.returncode, output


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_stopped_backfill_leaves_its_table_as_it_was(start, tmp_path, number):
    write_deltalake(str(tmp_path / "table"), pa.table({"key": ["k"], "value": ["before"]}))
    job = start()
    reached = tmp_path / "reached"
    eventually(lambda: reached.exists() or job.poll() is not None, "a task", progress=lambda: work_of(job.pid))
    assert job.poll() is None, ended(job)
    told = job.stdout.readline()
    while "tasks are done" not in told:
        told = job.stdout.readline()
        assert told, "the job ended without reporting its progress"
    assert re.match(r"Spark's job \d+: \d+ of \d+ tasks are done$", told)
    job.send_signal(number)
    code, output = ended(job)  # the job's task never ends, so the job did not wait for it
    assert code == 3, output
    assert "stopping: " in output
    assert "error: " not in output
    assert DeltaTable(str(tmp_path / "table")).version() == 0
