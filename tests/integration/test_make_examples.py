"""Tests of ``jobs/make_examples.py`` as users run it.

It fills topics with records of the present time, and a second run appends.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest

from millrace.clients import Admin, Consumer, TopicPartition

JOB = Path(__file__).parents[2] / "jobs" / "make_examples.py"


def fill(servers: str, *arguments: str) -> str:
    command = [sys.executable, str(JOB), "--bootstrap-servers", servers, "--partitions", "1", *arguments]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


@pytest.mark.parametrize(
    ("data", "keys", "year"), [("requests", ("address",), 2024), ("lines", (), None), ("planes", ("tailnum",), 2013)]
)
def test_a_topic_is_filled_and_appended_to(broker, data, keys, year):
    topic = f"made-{data}"
    assert f"-> {topic} at" in fill(broker.bootstrap_servers, "--data", data, "--topic", topic, "--rows", "50")
    assert "the rows are appended" in fill(broker.bootstrap_servers, "--data", data, "--topic", topic, "--rows", "50")
    servers = {"bootstrap.servers": broker.bootstrap_servers}
    with Admin(servers) as admin:
        described = admin.describe_topic(topic)
        end = admin.list_offsets({TopicPartition(topic, 0): "latest"})[TopicPartition(topic, 0)].offset
    assert described.key_columns == keys
    assert end == (2 * 3322 if data == "planes" else 100)
    with Consumer(servers) as consumer:
        consumer.assign([TopicPartition(topic, 0)])
        consumer.seek(TopicPartition(topic, 0), 0)
        table = consumer.poll_table(timeout_ms=10_000, metadata=True)
    assert isinstance(table, pa.Table)
    assert table.num_rows > 0
    assert year is None or {time.year for time in table["__timestamp"].to_pylist()} == {year}
