"""Tests of ``millrace log verify``, ``repair`` and ``convert`` on a broker's directory.

A broker then opens the result.
"""

from __future__ import annotations

import json
import shutil
from functools import partial
from pathlib import Path

import pyarrow as pa
import pytest

from millrace.clients import Admin, Consumer, Producer, TopicPartition
from millrace.ids import id_text
from millrace.records import HEADER_BYTES, scan_headers
from millrace_broker.testing import EmbeddedBroker

from .commands import run_millrace

CONFIG = {"retention.ms": "-1", "segment.bytes": "3000", "index.interval.bytes": "500"}


run = partial(run_millrace, "log")


def fill(broker: EmbeddedBroker, topic: str, count: int = 400) -> list[bytes]:
    values = [b"%05d" % number for number in range(count)]
    with Producer({"bootstrap.servers": broker.bootstrap_servers, "batch.size": 500, "linger.ms": 0}) as producer:
        for start in range(0, count, 10):
            table = pa.table({"value": pa.array(values[start : start + 10], pa.binary())})
            producer.send_table(topic, table, partition=0)
            producer.flush()
    return values


def read(broker: EmbeddedBroker, topic: str, count: int) -> list[bytes]:
    found: list[bytes] = []
    with Consumer({"bootstrap.servers": broker.bootstrap_servers}) as consumer:
        consumer.assign([TopicPartition(topic, 0)])
        consumer.seek(TopicPartition(topic, 0), 0)
        for _ in range(60):
            found += [record.value for record in consumer.poll(1.0)]
            if len(found) >= count:
                break
    return found


@pytest.fixture
def stopped(tmp_path: Path) -> tuple[Path, list[bytes]]:
    """Return the data directory of a stopped broker with a topic, and the topic's values."""
    data = tmp_path / "data"
    with EmbeddedBroker(data) as broker, Admin(broker.bootstrap_servers) as admin:
        admin.create_topic("orders", partitions=1, configs=CONFIG)
        values = fill(broker, "orders")
    return data, values


def test_damage_is_found_mended_and_the_broker_continues(stopped: tuple[Path, list[bytes]]) -> None:
    data, values = stopped
    assert "sound" in run("verify", data, "--deep").stdout
    assert "nothing to repair in 1 partitions" in run("repair", data).stdout
    path = sorted((data / "orders-0").glob("*.log"))[1]
    position, header = list(scan_headers(path.read_bytes()))[2]
    content = bytearray(path.read_bytes())
    content[position + HEADER_BYTES + 200] ^= 4
    path.write_bytes(content)

    damaged = run("verify", data, code=1)
    assert f"{path}: position {position}, offset {header.base_offset}: fails its checksum" in damaged.stderr
    assert "1 problems" in damaged.stdout
    kinds = [json.loads(line)["kind"] for line in run("verify", data, "--json", code=1).stdout.splitlines()]
    assert kinds.count("problem") == 1

    planned = run("repair", data, code=1)
    gone = range(header.base_offset, header.next_offset)
    assert f"offsets {gone[0]}..{gone[-1]}" in planned.stdout
    assert "--yes carries them out" in planned.stderr
    assert path.read_bytes() == content, "the command changes nothing without --yes"
    (step,) = [json.loads(line) for line in run("repair", data, "--yes", "--json").stdout.splitlines()]
    assert (step["file"], step["is_done"]) == (path.name, True)
    run("verify", data, "--deep")

    with EmbeddedBroker(data) as broker:
        left = [value for offset, value in enumerate(values) if offset not in gone]
        assert read(broker, "orders", len(left)) == left
        refused = run("repair", data, "--yes", code=1)
        assert "is in use by" in refused.stderr
        run("verify", data)


def test_a_partition_of_another_broker_is_brought_in(stopped: tuple[Path, list[bytes]], tmp_path: Path) -> None:
    data, values = stopped
    other = tmp_path / "other"
    with EmbeddedBroker(other) as broker, Admin(broker.bootstrap_servers) as admin:
        admin.create_topic("orders", partitions=1, configs=CONFIG)
        topic_id = id_text(admin.describe_topic("orders").topic_id)
    target = tmp_path / "converted" / "orders-0"
    options = ["--topic-id", topic_id, "--format", "rows", "--compression", "lz4", "--forget-producers"]
    done = run("convert", data / "orders-0", target, *options)
    assert "offsets 0..399" in done.stdout
    assert topic_id in done.stdout
    shutil.rmtree(other / "orders-0")
    shutil.move(target, other / "orders-0")
    with EmbeddedBroker(other) as broker:
        assert read(broker, "orders", 400) == values
        fill(broker, "orders", 20)
        assert len(read(broker, "orders", 420)) == 420


def test_wrong_usage_is_refused_and_each_help_has_examples(stopped: tuple[Path, list[bytes]], tmp_path: Path) -> None:
    data, _ = stopped
    assert "holds none" in run("verify", _made(tmp_path / "empty"), code=2).stderr
    assert "no such directory" in run("repair", tmp_path / "none", code=2).stderr
    assert "already exists" in run("convert", data / "orders-0", _made(tmp_path / "there-0"), code=2).stderr
    assert "not the name of a partition" in run("convert", data / "orders-0", tmp_path / "name", code=2).stderr
    assert "22 characters" in run("convert", data / "orders-0", tmp_path / "t-0", "--topic-id", "x", code=2).stderr
    for command in ("dump", "verify", "repair", "convert"):
        assert "Examples" in run(command, "--help").stdout


def _made(path: Path) -> Path:
    path.mkdir()
    return path
