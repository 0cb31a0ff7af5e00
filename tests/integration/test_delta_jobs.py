"""Tests of ``jobs/delta_to_topic.py`` and ``jobs/upsert_to_delta.py`` run as users run them.

A table goes to a topic and back.
"""

import json
import signal
import subprocess
import sys
import uuid
from functools import partial
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from millrace.clients import Admin, TopicPartition

from .waiting import eventually, output_of, run_to_end, work_of

pytestmark = pytest.mark.spark

JOBS = Path(__file__).parents[2] / "jobs"
KEPT = {"delta.enableChangeDataFeed": "true"}


def run(job, *arguments):
    command = [sys.executable, JOBS / job, *arguments]
    ended = run_to_end(command)
    return ended.returncode, ended.stdout + ended.stderr


def run_until(job, *arguments, is_done):
    """Run a job without an end, and stop it once it has done the wanted work."""
    command = [sys.executable, JOBS / job, *arguments, "--continuous"]
    process = subprocess.Popen(
        [str(part) for part in command], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    try:
        eventually(
            lambda: is_done() or process.poll() is not None,
            "the job's work",
            progress=lambda: work_of(process.pid),
            pause_s=0.1,
        )
        assert process.poll() is None, process.communicate()
        process.send_signal(signal.SIGTERM)
        printed, _ = output_of(process)
    finally:
        process.kill()
        process.wait()
    return process.returncode, printed


def records_in(servers, topic):
    """Return the committed records, with the markers of their transactions."""
    with Admin(servers) as admin:
        partitions = [TopicPartition(topic, number) for number in range(2)]
        ends = admin.list_offsets(dict.fromkeys(partitions, "latest"), isolation_level="read_committed")
    return sum(end.offset for end in ends.values())


def people(*rows):
    return pa.table({"id": [row[0] for row in rows], "name": [row[1] for row in rows]})


@pytest.mark.slow
def test_a_table_goes_to_a_topic_and_its_changes_to_another_table(module_broker, tmp_path):
    topic, table, copy = f"people-{uuid.uuid4().hex[:8]}", tmp_path / "people", tmp_path / "copy"
    servers = ("--bootstrap-servers", module_broker.bootstrap_servers)
    with Admin(module_broker.bootstrap_servers) as admin:
        admin.create_topic(topic, partitions=2, configs={"retention.ms": "-1"})
    write_deltalake(str(table), people((1, "Ada"), (2, "Bob"), (3, "Cyd")), configuration=KEPT)
    out = ("delta_to_topic.py", "--table", table, "--topic", topic, "--key", "id", "--checkpoint", tmp_path / "c")
    code, printed = run(*out, *servers)
    assert code == 0, printed
    assert "3 changes read" in printed
    DeltaTable(str(table)).delete("id = 2")
    write_deltalake(str(table), people((4, "Dee")), mode="append")
    before = records_in(module_broker.bootstrap_servers, topic)
    written = partial(records_in, module_broker.bootstrap_servers, topic)
    code, printed = run_until(*out, *servers, is_done=lambda: written() >= before + 3)
    assert code == 0, printed
    assert "stopping: " in printed
    # Each run began where the one before had ended. The record of a deleted row has only a key.
    columns = ("--select", "CAST(get_json_object(CAST(key AS STRING), '$.id') AS INT) AS id")
    columns += ("--select", "get_json_object(CAST(value AS STRING), '$.name') AS name")
    back = ("upsert_to_delta.py", "--topic", topic, "--table", copy, "--key", "id", "--delete-when", "value IS NULL")
    columns += ("--select", "value", "--drop", "value")
    is_there = partial(DeltaTable.is_deltatable, str(copy))
    code, printed = run_until(
        *back, *columns, *servers, is_done=lambda: is_there() and DeltaTable(str(copy)).version() > 0
    )
    assert code == 0, printed
    assert "stopping: " in printed
    assert "5 changes" in printed
    found = DeltaTable(str(copy)).to_pyarrow_table().sort_by("id").to_pylist()
    assert found == [{"id": 1, "name": "Ada"}, {"id": 3, "name": "Cyd"}, {"id": 4, "name": "Dee"}]
    logged = (copy / "_delta_log").glob("*.json")
    assert any("txn" in json.loads(line) for path in logged for line in path.read_text().splitlines())
