"""Tests of the command's performance tools.

The tools run and print Kafka's lines.
"""

import re
import subprocess
from pathlib import Path

import pytest

from millrace.clients import Admin, TopicPartition
from millrace_broker.testing import EmbeddedBroker

from .commands import run_millrace

_TOTAL = re.compile(
    r"^(\d+) records sent, [\d.]+ records/sec \([\d.]+ MB/sec\), [\d.]+ ms avg latency, [\d.]+ ms max latency, "
    r"\d+ ms 50th, \d+ ms 95th, \d+ ms 99th, \d+ ms 99\.9th\.$",
    re.MULTILINE,
)


def _perf(broker: EmbeddedBroker, *arguments: str, code: int = 0) -> subprocess.CompletedProcess[str]:
    environment = {"MILLRACE_BOOTSTRAP_SERVERS": broker.bootstrap_servers}
    return run_millrace("perf", *arguments, environment=environment, code=code)


def _count(broker: EmbeddedBroker, topic: str, partitions: int) -> int:
    with Admin(broker.bootstrap_servers) as admin:
        ends = admin.list_offsets({TopicPartition(topic, number): "latest" for number in range(partitions)})
    return sum(end.offset for end in ends.values())


@pytest.mark.parametrize("mode", ["records", "tables"])
def test_produce_sends_what_it_says(module_broker: EmbeddedBroker, mode: str) -> None:
    topic = f"perf-{mode}"
    with Admin(module_broker.bootstrap_servers) as admin:
        admin.create_topic(topic, partitions=2)
    options = ["--topic", topic, "--num-records", "3001", "--record-size", "100", "--mode", mode, "--print-metrics"]
    done = _perf(module_broker, "produce", *options, "--producer-props", "compression.type=lz4")
    total = _TOTAL.search(done.stdout)
    assert total is not None
    assert total[1] == "3001"
    assert re.search(r"^Metric Name +Value$", done.stdout, re.MULTILINE)
    assert re.search(r"^producer-metrics:record-send-total:\{client-id=\} +: 3001\.000$", done.stdout, re.MULTILINE)
    assert f"producer-topic-metrics:byte-total:{{client-id=, topic={topic}}}" in done.stdout
    assert _count(module_broker, topic, 2) == 3001


def test_produce_takes_payloads_throughput_and_transactions(module_broker: EmbeddedBroker, tmp_path: Path) -> None:
    with Admin(module_broker.bootstrap_servers) as admin:
        admin.create_topic("perf-payloads", partitions=1)
    payloads = tmp_path / "payloads"
    payloads.write_text("one\ntwo\n")
    options = ["--topic", "perf-payloads", "--num-records", "200", "--throughput", "1000"]
    done = _perf(module_broker, "produce", *options, "--payload-file", str(payloads), "--transaction-duration-ms", "50")
    assert _TOTAL.search(done.stdout)
    assert _count(module_broker, "perf-payloads", 1) > 200  # markers are records too


@pytest.mark.parametrize("mode", ["records", "tables"])
def test_the_steady_state_is_what_comes_after_the_warm_up(module_broker: EmbeddedBroker, mode: str) -> None:
    topic = f"perf-steady-{mode}"
    with Admin(module_broker.bootstrap_servers) as admin:
        admin.create_topic(topic, partitions=1)
    options = ["--topic", topic, "--num-records", "3000", "--record-size", "10", "--throughput", "10000"]
    done = _perf(module_broker, "produce", *options, "--mode", mode, "--warmup-records", "2000")
    total, steady = (
        _TOTAL.search(done.stdout),
        re.search(r"^(\d+) steady state records sent, ", done.stdout, re.MULTILINE),
    )
    assert total is not None
    assert steady is not None
    assert (total[1], steady[1]) == ("3000", "1000")


def test_wrong_usage_is_reported(module_broker: EmbeddedBroker) -> None:
    options = ["--topic", "nowhere", "--num-records", "1"]
    assert "give either --record-size or --payload-file" in _perf(module_broker, "produce", *options, code=2).stderr
    warm = [*options, "--record-size", "1", "--warmup-records", "1"]
    assert "give fewer than the 1 records" in _perf(module_broker, "produce", *warm, code=2).stderr
    missing = _perf(module_broker, "produce", *options, "--record-size", "1", code=1).stderr
    assert "topic nowhere does not exist: auto.create.topics.enable is off" in missing
    assert "--producer-acks 0" in _perf(module_broker, "latency", "--topic", "x", "--producer-acks", "0", code=2).stderr


def test_latency_prints_average_and_percentiles(module_broker: EmbeddedBroker) -> None:
    done = _perf(module_broker, "latency", "--topic", "perf-latency", "--num-records", "50")
    assert 'Topic "perf-latency" does not exist' in done.stdout
    assert re.search(r"^0\t[\d.]+$", done.stdout, re.MULTILINE)
    assert re.search(r"^Avg latency: [\d.]+ ms$", done.stdout, re.MULTILINE)
    assert re.search(r"^Percentiles: 50th = \d+, 99th = \d+, 99\.9th = \d+$", done.stdout, re.MULTILINE)
    assert _count(module_broker, "perf-latency", 1) == 50
