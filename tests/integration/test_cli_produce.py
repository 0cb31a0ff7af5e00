"""Tests of ``millrace produce``.

The tests cover input lines, headers, and transactions.
"""

import json
import subprocess
from collections.abc import Callable
from functools import partial

import pytest

from millrace.clients import Admin, Consumer, ConsumerRecord
from millrace_broker.testing import EmbeddedBroker

from .commands import run_millrace

Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def run(module_broker: EmbeddedBroker) -> Run:
    environment = {"MILLRACE_BOOTSTRAP_SERVERS": module_broker.bootstrap_servers}
    return partial(run_millrace, "produce", environment=environment)


def _read(broker: EmbeddedBroker, topic: str) -> list[ConsumerRecord]:
    config = {
        "bootstrap.servers": broker.bootstrap_servers,
        "auto.offset.reset": "earliest",
        "isolation.level": "read_committed",
    }
    records: list[ConsumerRecord] = []
    with Consumer(config) as consumer:
        consumer.assign(consumer.partitions_for(topic))
        ends = consumer.end_offsets(consumer.assignment())
        while any(consumer.position(partition) < end for partition, end in ends.items()):
            records += consumer.poll(100)
    return records


def test_raw_and_hexadecimal_lines_become_records_with_keys_and_headers(
    admin: Admin, module_broker: EmbeddedBroker, run: Run
) -> None:
    admin.create_topic("textual", partitions=1)
    run("textual", "--format", "raw", "--header", "source=test", "-H", "n=1", stdin="plain\n")
    run("textual", "--format", "hex", stdin="00ff\n0x6869\n")
    run("textual", "--format", "hex", "--key-separator", ":", stdin="6b:76\n")
    records = _read(module_broker, "textual")
    assert [record.value for record in records] == [b"plain", b"\x00\xff", b"hi", b"v"]
    assert records[0].headers == (("source", b"test"), ("n", b"1"))
    assert records[3].key == b"k"
    assert "line 2 is not hexadecimal" in run("textual", "--format", "hex", stdin="00\nzz\n", code=1).stderr
    assert "expected NAME=VALUE" in run("textual", "-H", "nothing", stdin="x\n", code=2).stderr


def test_a_json_line_sets_all_fields_of_a_record(admin: Admin, module_broker: EmbeddedBroker, run: Run) -> None:
    admin.create_topic("whole", partitions=3, configs={"retention.ms": "-1"})
    line = {"key": "k", "value": "v", "headers": {"h": "x"}, "timestamp": 1234, "partition": 2}
    run("whole", "--format", "json", stdin=json.dumps(line) + "\n")
    (record,) = _read(module_broker, "whole")
    assert (record.partition, record.timestamp_ms) == (2, 1234)
    assert (record.key, record.value, record.headers) == (b"k", b"v", (("h", b"x"),))


def test_a_transaction_has_all_lines_or_after_a_wrong_line_none(
    admin: Admin, module_broker: EmbeddedBroker, run: Run
) -> None:
    admin.create_topic("atomic", partitions=1, schema="id INT")
    arguments = ["atomic", "--transactional-id", "loader", "--producer-property", "batch.size=1000"]
    run(*arguments, stdin='{"id": 1}\n{"id": 2}\n')
    bad = "".join(f'{{"id": {number}}}\n' for number in range(200_000)) + '{"id": "x"}\n'
    text = run(*arguments, stdin=bad, code=1).stderr
    assert "which the transaction drops: line 200001: column id" in text
    assert [record.value for record in _read(module_broker, "atomic")] == [{"id": 1}, {"id": 2}]
    assert "unknown option no.such" in run("atomic", "--producer-property", "no.such=1", stdin="", code=1).stderr


def test_records_that_a_broker_refuses_fail_the_command_also_if_later_ones_are_stored(
    admin: Admin, module_broker: EmbeddedBroker, run: Run
) -> None:
    admin.create_topic("recent", partitions=1, configs={"message.timestamp.before.max.ms": "3600000"})
    later = '{"value": "later"}\n' * 20_000  # several tables
    text = run("recent", "--format", "json", stdin='{"value": "old", "timestamp": 1}\n' + later, code=1).stderr
    assert "message.timestamp.before.max.ms" in text
    assert "sent to recent" not in text
    assert b"old" not in {record.value for record in _read(module_broker, "recent")}


def test_a_table_into_an_opaque_topic_has_timestamps_of_a_column(
    admin: Admin, module_broker: EmbeddedBroker, run: Run
) -> None:
    admin.create_topic("dated", partitions=1, configs={"retention.ms": "-1"})
    arguments = ["dated", "--format", "csv", "--timestamp", "at", "--key", "id"]
    run(*arguments, stdin="id,at\n7,1970-01-01 00:00:01Z\n")
    run(*arguments, stdin="id,value,at\n07,NA,1970-01-01 00:00:02Z\n")
    first, second = _read(module_broker, "dated")
    assert (first.timestamp_ms, first.key) == (1000, b"7")
    assert json.loads(first.value) == {"id": 7, "at": "1970-01-01T00:00:01+00:00"}
    assert (second.timestamp_ms, second.key, second.value) == (2000, b"07", b"NA")
    assert "--timestamp at: the data has the columns id" in run(*arguments, stdin="id\n1\n", code=2).stderr
