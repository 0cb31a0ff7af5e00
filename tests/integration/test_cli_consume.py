"""Tests of ``millrace consume``, ``groups`` and ``perf consume`` against a real broker.

The commands run in this process.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from millrace.cli.main import main
from millrace.cli.perf.consume_statistics import HEADER
from millrace.clients import Admin, Producer
from millrace_broker.testing import EmbeddedBroker

Run = Callable[..., str]


BROKER_OPTIONS = {"group.initial.rebalance.delay.ms": "0"}


@pytest.fixture
def run(module_broker: EmbeddedBroker, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Run:
    monkeypatch.setenv("MILLRACE_BOOTSTRAP_SERVERS", module_broker.bootstrap_servers)

    def run_command(*arguments: str, code: int = 0) -> str:
        """Return a command's output, which is on standard error if the command fails."""
        capfd.readouterr()
        assert main(arguments) == code, capfd.readouterr()
        captured = capfd.readouterr()
        return captured.err if code else captured.out

    return run_command


@pytest.fixture(scope="module")
def topic(module_broker: EmbeddedBroker) -> str:
    """Create two partitions with records 0 to 9 in each, a second apart, with keys and headers."""
    with Admin(module_broker.bootstrap_servers) as admin, Producer(module_broker.bootstrap_servers) as producer:
        # The records are of 1970.
        admin.create_topic("things", partitions=2, configs={"retention.ms": "-1"})
        for partition in (0, 1):
            for number in range(10):
                producer.send(
                    "things",
                    b"v%d\x01" % number,
                    key=b"k%d" % number,
                    headers={"h": b"x"},
                    timestamp_ms=number * 1000,
                    partition=partition,
                )
    return "things"


def test_only_the_records_of_a_range_of_offsets_or_times_are_printed(run: Run, topic: str) -> None:
    lines = run("consume", topic, "--from", "3", "--to", "5", "--format", "json").splitlines()
    assert sorted((row["partition"], row["offset"]) for row in map(json.loads, lines)) == [
        (partition, offset) for partition in (0, 1) for offset in (3, 4)
    ]
    times = ("--from", "1970-01-01T00:00:02", "--to", "1970-01-01T00:00:04Z", "--partitions", "1")
    lines = run("consume", topic, *times, "--format", "json").splitlines()
    assert [json.loads(line)["timestamp"] for line in lines] == [2000, 3000]
    table = run("consume", topic, "--to", "1", "--format", "table")
    assert table.count("v0") == 2
    assert "v1" not in table
    assert "ISO 8601" in run("consume", topic, "--to", "never", code=2)
    assert "leave out --to" in run("consume", topic, "--to", "5", "--follow", code=2)


def test_chosen_fields_are_shown_before_values(run: Run, topic: str) -> None:
    shown = run(
        "consume", topic, "-p", "0", "--to", "1", "-f", "value", "--show", "key,offset,timestamp,headers,partition"
    )
    assert shown == "Timestamp:0\tPartition:0\tOffset:0\th:x\tk0\tv0\x01\n"
    hexed = run("consume", topic, "-p", "0", "--to", "1", "-f", "hex", "--show", "key")
    assert "things-0 offset 0" in hexed
    assert "00000000  76 30 01" in hexed
    assert "|v0.|" in hexed
    assert "value: 3 bytes" in hexed
    assert "expected some of" in run("consume", topic, "--show", "color", code=2)
    assert "--show needs" in run("consume", topic, "-f", "json", "--show", "key", code=2)


def test_a_group_continues_where_it_was(run: Run, topic: str) -> None:
    first = run("consume", topic, "--group", "shell", "-n", "7", "-f", "value").splitlines()
    assert len(first) == 7
    rest = run("consume", topic, "--group", "shell", "-f", "value").splitlines()
    assert len(first) + len(rest) == 20
    assert run("consume", topic, "--group", "shell", "-f", "value") == ""
    assert "--group excludes --partitions" in run("consume", topic, "--group", "g", "-p", "1", code=2)
    assert "starts at committed offsets" in run("consume", topic, "--group", "g", "--from", "5", code=2)


@pytest.mark.parametrize("form", ["table", "value"])
def test_a_group_commits_only_the_records_before_the_end(run: Run, topic: str, form: str) -> None:
    group = f"ends-{form}"
    run("consume", topic, "--group", group, "--to", "4", "-f", form)
    rows = json.loads(run("groups", "describe", group, "--json"))
    assert [row["current_offset"] for row in rows] == [4, 4]


def test_groups_are_listed_described_and_reset_by_commands(run: Run, topic: str, tmp_path: Path) -> None:
    run("consume", topic, "--group", "tool", "-f", "value")
    assert "tool" in run("groups", "list", "--state", "Empty")
    assert "tool" in run("groups", "list", "--state", "empty", "--type", "Classic")
    described = run("groups", "describe", "tool")
    assert "LAG-BYTES" in described
    assert [row["lag"] for row in json.loads(run("groups", "describe", "tool", "--json"))] == [0, 0]
    assert "Empty" in run("groups", "describe", "tool", "--state")
    assert run("groups", "describe", "tool", "--members") == ""
    dry = run("groups", "reset-offsets", "tool", "--all-topics", "--to-earliest")
    assert "NEW-OFFSET" in dry
    assert json.loads(run("groups", "describe", "tool", "--json"))[0]["lag"] == 0
    run("groups", "reset-offsets", "tool", "--topic", "things:0", "--to-offset", "4", "--execute")
    run("groups", "reset-offsets", "tool", "--topic", "things:1", "--shift-by", "-3", "--execute")
    rows = json.loads(run("groups", "describe", "tool", "--json"))
    assert [(row["current_offset"], row["lag"]) for row in rows] == [(4, 6), (7, 3)]
    assert all(row["lag_bytes"] > 0 and row["lag_seconds"] > 0 for row in rows)
    plan = tmp_path / "plan.csv"
    plan.write_text(run("groups", "reset-offsets", "tool", "--all-topics", "--to-current", "--export"))
    assert plan.read_text() == "things,0,4\nthings,1,7\n"
    run("groups", "reset-offsets", "tool", "--topic", topic, "--to-datetime", "1970-01-01T00:00:05", "--execute")
    assert [row["current_offset"] for row in json.loads(run("groups", "describe", "tool", "--json"))] == [5, 5]
    run("groups", "reset-offsets", "tool", "--topic", topic, "--by-duration", "PT1H", "--execute")
    assert [row["lag"] for row in json.loads(run("groups", "describe", "tool", "--json"))] == [0, 0]
    run("groups", "reset-offsets", "tool", "--from-file", str(plan), "--execute")
    assert [row["current_offset"] for row in json.loads(run("groups", "describe", "tool", "--json"))] == [4, 7]
    run("groups", "delete-offsets", "tool", "--topic", "things:1")
    assert len(json.loads(run("groups", "describe", "tool", "--json"))) == 1
    run("groups", "delete", "tool")
    assert "there is no group tool" in run("groups", "describe", "tool", code=1)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("describe",), "name groups, or give --all-groups"),
        (("describe", "g", "--members", "--state"), "choose one"),
        (("reset-offsets", "g", "--topic", "things"), "name the target"),
        (("reset-offsets", "g", "--to-earliest"), "name the topics"),
        (("reset-offsets", "g", "--topic", "things:x", "--to-earliest"), "expected TOPIC"),
        (("reset-offsets", "g", "--topic", "things", "--by-duration", "1h"), "expected ISO 8601"),
        (("reset-offsets", "g", "--topic", "things", "--to-latest", "--shift-by", "1"), "name the target"),
        (("reset-offsets", "g", "--from-file", "/no/such"), "No such file"),
    ],
)
def test_wrong_options_of_group_commands_are_refused_with_the_reason(
    run: Run, topic: str, arguments: tuple[str, ...], message: str
) -> None:
    assert message in run("groups", *arguments, code=2)


@pytest.mark.parametrize("options", [("--mode", "records"), ("--mode", "tables"), ("--mode", "tables", "--no-direct")])
def test_perf_consume_prints_kafkas_lines(run: Run, topic: str, options: tuple[str, ...]) -> None:
    lines = run("perf", "consume", "-t", topic, "--messages", "20", "--print-metrics", *options).splitlines()
    assert lines[0] == HEADER
    figures = lines[1].split(", ")
    assert len(figures) == len(HEADER.split(", "))
    assert figures[4] == "20"
    consumed = "consumer-fetch-manager-metrics:records-consumed-total:{client-id=}"
    assert any(line.split() == [consumed, ":", "20.000"] for line in lines)


def test_a_table_shows_a_timestamp_beyond_the_year_9999_as_a_number(run: Run, module_broker: EmbeddedBroker) -> None:
    stamp = 2**55
    with Admin(module_broker.bootstrap_servers) as admin, Producer(module_broker.bootstrap_servers) as producer:
        admin.create_topic("far", partitions=1, configs={"message.timestamp.after.max.ms": str(2**63 - 1)})
        producer.send("far", b"v", timestamp_ms=stamp).result()
    assert str(stamp) in run("consume", "far", "--format", "table")
