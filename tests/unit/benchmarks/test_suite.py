"""Tests of the benchmark suite.

Each module has one goal and a row in the report.
"""

from __future__ import annotations

import re

import pytest
from benchmarks import ours, report, suite
from benchmarks.harness import RESULTS, Durability
from benchmarks.peers import kafka

NAMES = suite.names()
WITHOUT_DISK = {"rows_decode", "kafka_typed_in"}
"""Benchmarks that measure code in memory. Every other one must say when its sides wait for the disk."""
VARIANTS = {
    "spark_read_opaque_all": "spark_read_opaque",
    "spark_read_opaque_remote": "spark_read_opaque",
    "spark_read_typed_remote": "spark_read_typed",
    "topic_to_delta_opaque_sink": "topic_to_delta_opaque",
    "topic_to_delta_remote": "topic_to_delta",
}
"""Rows with the same work under another setting. The row named here is measured at each side's best settings."""
BEST_ELSEWHERE = {
    "delta_upsert_small": "delta_upsert_best has a tuned MERGE",
    "delta_upsert_small_cluster": "delta_upsert_best has a tuned MERGE",
    "kafka_rtm": "both sides have the same source and sink, in the real-time mode",
    "kafka_rtm_limit": "both sides have the same source and sink, in the real-time mode",
    "spark_time_range_filter": "Kafka's source is at its best with its timestamp options: spark_time_range_best",
    "streams_state": "millrace beside itself",
    "streams_table": "the number of Kafka Streams' updates says when a run is over: no cache",
    "streams_window_every": "every update counts: no cache",
}
"""Reasons why a row about Spark or Kafka Streams has no row at each side's best settings."""


@pytest.mark.parametrize("name", NAMES)
def test_a_module_holds_a_benchmark_of_its_name(name: str) -> None:
    (benchmark,) = suite.benchmarks([name])
    assert benchmark.name == name
    assert (benchmark.target_ratio is None) != (benchmark.limit is None), "a benchmark has one goal"
    assert benchmark.ours.settings
    assert benchmark.peer.settings
    if name not in WITHOUT_DISK:
        assert "fsync" in benchmark.ours.settings
        assert "fsync" in benchmark.peer.settings
    assert benchmark.durability in Durability


def _about_spark() -> list[str]:
    about = ("delta_", "kafka_rtm", "kafka_spark_", "spark_", "streams_", "topic_to_")
    return [name for name in NAMES if name.startswith(about) and "_best" not in name]


@pytest.mark.parametrize("name", _about_spark())
def test_a_row_about_spark_has_another_one_with_each_side_at_its_best(name: str) -> None:
    claim = VARIANTS.get(name, name)
    best = claim.removesuffix("_p99") + "_best" + ("_p99" if claim.endswith("_p99") else "")
    assert (best in NAMES) != (name in BEST_ELSEWHERE)


@pytest.mark.parametrize("name", [name for name in NAMES if "_best" in name and not name.startswith("streams_")])
def test_a_row_at_each_sides_best_tells_what_the_peer_is_given(name: str) -> None:
    (best,) = suite.benchmarks([name])
    (equal,) = suite.benchmarks([name.replace("_best", "")])
    assert (best.peer.what, best.peer.settings) != (equal.peer.what, equal.peer.settings)
    sides = (best.ours, best.peer)
    assert len({"profile low-latency" in each.settings for each in sides}) == 1, "it works for any source"


def test_the_settings_of_both_brokers_name_their_options() -> None:
    for options, settings in ((ours.OPTIONS, ours.SETTINGS), (kafka.OPTIONS, kafka.SETTINGS)):
        assert all(f"{name}={value}" in settings for name, value in options.items())
        assert "otherwise its defaults" in settings
    named = {line.partition("=")[0] for line in kafka.NODE.splitlines()}
    assert {name for name in named if not name.endswith((".replication.factor", ".min.isr"))} == {
        "process.roles",
        "node.id",
        "controller.quorum.voters",
        "listeners",
        "advertised.listeners",
        "controller.listener.names",
        "inter.broker.listener.name",
        "listener.security.protocol.map",
        "log.dirs",
    }


def test_every_benchmark_has_a_row_in_the_report() -> None:
    rows = re.findall(r"^\| \[`(\w+)`\]\(#\1\) \|", report.REPORT.read_text(), re.MULTILINE)
    assert rows == NAMES, "run python -m benchmarks.report"


def test_every_result_belongs_to_a_benchmark() -> None:
    assert {path.stem for path in RESULTS.glob("*.json")} <= set(NAMES)
