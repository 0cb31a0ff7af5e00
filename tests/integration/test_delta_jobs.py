"""``jobs/delta_to_topic.py`` and ``jobs/upsert_to_delta.py`` run as users run them: a table to a topic and back."""

import json
import subprocess
import sys
import uuid
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from millrace.clients import Admin

pytestmark = pytest.mark.spark

JOBS = Path(__file__).parents[2] / "jobs"
DEADLINE_S = 200
KEPT = {"delta.enableChangeDataFeed": "true"}


def run(job, *arguments):
    command = [sys.executable, JOBS / job, *arguments]
    ended = subprocess.run([str(part) for part in command], capture_output=True, text=True, timeout=DEADLINE_S)
    return ended.returncode, ended.stdout + ended.stderr


def people(*rows):
    return pa.table({"id": [row[0] for row in rows], "name": [row[1] for row in rows]})


@pytest.mark.slow
@pytest.mark.timeout(600)
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
    code, printed = run(*out, *servers)
    assert code == 0, printed
    # Each run began where the one before had ended; the record of a deleted row has a key alone.
    columns = ("--select", "CAST(get_json_object(CAST(key AS STRING), '$.id') AS INT) AS id")
    columns += ("--select", "get_json_object(CAST(value AS STRING), '$.name') AS name")
    back = ("upsert_to_delta.py", "--topic", topic, "--table", copy, "--key", "id", "--delete-when", "value IS NULL")
    columns += ("--select", "value", "--drop", "value")
    code, printed = run(*back, *columns, *servers)
    assert code == 0, printed
    assert "5 changes" in printed
    found = DeltaTable(str(copy)).to_pyarrow_table().sort_by("id").to_pylist()
    assert found == [{"id": 1, "name": "Ada"}, {"id": 3, "name": "Cyd"}, {"id": 4, "name": "Dee"}]
    logged = (copy / "_delta_log").glob("*.json")
    assert any("txn" in json.loads(line) for path in logged for line in path.read_text().splitlines())
