"""Tests of ``millrace log dump`` on a running broker and damaged files."""

from __future__ import annotations

import json
import subprocess
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from millrace.clients import Admin, Producer
from millrace_broker.testing import EmbeddedBroker

from .commands import run_millrace

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("city", pa.string())])


run = partial(run_millrace, "log", "dump")


def lines(done: subprocess.CompletedProcess[str]) -> list[dict[str, Any]]:
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return tmp_path / "data"


def test_dumps_what_a_broker_has_open_and_finds_damage(data: Path) -> None:
    with EmbeddedBroker(data) as broker:
        with Admin(broker.bootstrap_servers) as admin, Producer(broker.bootstrap_servers) as producer:
            admin.create_topic("orders", partitions=1, schema=SCHEMA)
            producer.send_table("orders", pa.table({"id": [1, 2], "city": ["Bergen", None]}, schema=SCHEMA))
            producer.flush()
        table = run(data / "orders-0", "--print-data-log").stdout
        assert "columnar schema 1" in table
        assert "Bergen" in table
        found = lines(run("--files", data / "orders-0", "--print-data-log", "--json"))
        assert [line["value"] for line in found if line["kind"] == "record"] == [
            {"id": 1, "city": "Bergen"},
            {"id": 2, "city": None},
        ]
    run(data / "orders-0", "--verify-index-only")

    log = next(data.glob("orders-0/*.log"))
    content = bytearray(log.read_bytes())
    content[-1] ^= 1
    log.write_bytes(content)
    for options in ([], ["--json"]):
        damaged = run(log, *options, code=1)
        assert f"{log}: position 0, offset 0: fails its checksum" in damaged.stderr
        assert "1 problems in 1 of 1 files" in damaged.stderr


def test_wrong_usage_is_refused_and_the_help_lists_the_log_command(data: Path) -> None:
    assert "name a partition directory" in run("--files", "", code=2).stderr
    assert "no such file" in run(data, code=2).stderr
    overview = run_millrace("--help")
    assert "Show, verify, repair and convert the files of a log" in overview.stdout
