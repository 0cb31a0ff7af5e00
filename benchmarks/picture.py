"""Picture of the ratios, with one bar for each measured benchmark.

Bars go from 1× outward, and are grouped by user tasks.

Invariant: each benchmark of the suite is in one group of ``GROUPS`` or in ``LEFT_OUT``. The picture has no background,
and its colours can be read on white and on the dark background of code hosting sites.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

GROUPS: Mapping[str, Mapping[str, str]] = {
    "Produce": {
        "produce_table": "Tables of records, both at their defaults",
        "produce_table_best": "Tables of records, each side at its best",
        "produce_table_confluent": "Tables, beside single records of confluent-kafka",
        "produce_record": "Single records, beside confluent-kafka",
        "produce_record_kafka_python": "Single records, beside kafka-python",
        "tls_produce": "Share of the throughput that TLS leaves",
        "latency_broker": "One record from send to poll, median",
        "latency_broker_p99": "One record from send to poll, 99th percentile",
        "transactions_concurrent": "Transactions of 100 producers at once",
    },
    "Consume": {
        "consume": "To Arrow, over gRPC",
        "consume_frames": "To Arrow, as frames over TCP",
        "consume_local": "To Arrow, from segment files of the same machine",
        "tls_consume": "Share of the throughput that TLS leaves",
        "rows_decode": "Decode Kafka's records, beside aiokafka",
        "groups_commits": "Commits of offsets, one by one",
        "groups_rebalance": "Rebalance of 1,000 members",
    },
    "Kafka's clients, the same ones on both sides": {
        "kafka_produce": "Producer in Java, at its defaults",
        "kafka_produce_best": "Producer in Java, 64 KiB batches with lz4",
        "kafka_produce_confluent": "Producer of confluent-kafka",
        "kafka_typed_in": "JSON of Kafka producers into a typed topic",
        "kafka_consume": "Consumer in Java, of row batches",
        "kafka_consume_columnar": "Consumer in Java, of columnar batches",
        "kafka_latency": "One record from send to poll, median",
        "kafka_rtm": "Spark's real-time mode, topic to topic, median",
        "kafka_rtm_limit": "Spark's real-time mode, topic to topic, median and limit",
        "kafka_spark_rows": "Spark reads a Kafka producer's records, our source beside Kafka's",
        "kafka_spark_rows_best": "Spark reads a Kafka producer's records, each side at its best",
        "kafka_spark_typed": "Spark reads JSON of a Kafka producer as typed columns, beside from_json",
        "kafka_spark_typed_best": "Spark reads JSON as typed columns, each side at its best",
    },
    "Read with Spark": {
        "spark_read_opaque": "Values of bytes, one column",
        "spark_read_opaque_all": "Values of bytes, all columns",
        "spark_read_opaque_best": "Values of bytes, each side at its best",
        "spark_read_opaque_remote": "Values of bytes, over the network",
        "spark_read_typed": "Typed columns, beside from_json",
        "spark_read_typed_avro": "Typed columns, beside from_avro",
        "spark_read_typed_avro_best": "Typed columns, beside tuned from_avro",
        "spark_read_typed_best": "Typed columns, each side at its best",
        "spark_read_typed_remote": "Typed columns, over the network",
        "spark_skew": "One partition holds 90 % of the topic",
        "spark_skew_best": "One partition holds 90 %, each side at its best",
        "spark_skew_tasks": "Longest task to the median task, with that partition",
        "spark_skew_tasks_best": "Longest task to the median, each side at its best",
        "spark_time_range": "1 % of a topic by time, with timestamp options",
        "spark_time_range_best": "1 % of a topic by time, each side at its best",
        "spark_time_range_filter": "1 % of a topic by time, with a filter",
        "spark_latency": "Latency of a micro-batch, median",
        "spark_latency_p99": "Latency of a micro-batch, 99th percentile",
        "spark_latency_best": "Latency, median, each side at its best",
        "spark_latency_best_p99": "Latency, 99th percentile, each side at its best",
        "topic_to_topic": "Topic to topic, exactly once beside at least once",
        "topic_to_topic_best": "Topic to topic, each side at its best",
    },
    "Into Delta tables": {
        "topic_to_delta": "Typed topic, beside from_json",
        "topic_to_delta_best": "Typed topic, each side at its best",
        "topic_to_delta_remote": "Typed topic, over the network",
        "topic_to_delta_opaque": "Topic of bytes",
        "topic_to_delta_opaque_best": "Topic of bytes, each side at its best",
        "topic_to_delta_opaque_sink": "Topic of bytes, by Spark's own Delta sink",
        "delta_upsert": "Upserts of 10,000 rows, beside MERGE",
        "delta_upsert_best": "Upserts of 10,000 rows, each side at its best",
        "delta_upsert_small": "Upserts of 150 rows, beside MERGE",
        "delta_upsert_small_cluster": "Upserts of 150 rows, two executors",
    },
    "Streams, beside Kafka Streams": {
        "streams_stateless": "Filter and map",
        "streams_stateless_best": "Filter and map, each side at its best",
        "streams_window": "Count per window, last result of a micro-batch",
        "streams_window_best": "Count per window, each side at its best",
        "streams_window_every": "Count per window, every update",
        "streams_window_1m_keys": "Count per window, a million keys",
        "streams_window_1m_keys_best": "Count per window, a million keys, each at its best",
        "streams_window_replay": "Count per window, replayed as a batch",
        "streams_window_replay_best": "Count per window, replayed, each side at its best",
        "streams_repartition": "Count per window, through a repartition",
        "streams_repartition_best": "Through a repartition, each side at its best",
        "streams_join": "Join with a table",
        "streams_join_best": "Join with a table, each side at its best",
        "streams_table": "Table grouped anew, with Python functions",
    },
    "Cluster of three brokers": {
        "cluster_produce": "Produce with acks=all",
        "cluster_produce_p99": "Acknowledgement, 99th percentile",
        "cluster_failover": "A leader is killed, equal session time-outs",
        "failover_default": "A leader is killed, both at their defaults",
        "cluster_controller_failover": "The controller is killed",
        "cluster_catch_up": "An empty follower catches up",
    },
    "Operations": {
        "client_import": "Import of the clients, beside kafka-python",
        "broker_start": "Start of a broker",
        "broker_open": "Start of a broker with 2,000 partitions",
        "broker_memory": "Memory of a broker",
        "compaction": "Compaction",
        "log_append": "Append, synced at the end, beside dd",
        "log_append_best": "Append, beside dd with direct writes",
        "log_append_cached": "Append to the page cache, beside dd",
        "log_append_synced": "Append, each batch synced, beside dd",
        "log_read": "Read with checksums, beside read()",
        "log_recovery": "Recovery with checksums, beside dd",
        "log_lookup": "Look up an offset, beside SQLite",
    },
}
"""User tasks, and the benchmarks of each with their labels."""

LEFT_OUT: Mapping[str, str] = {
    "streams_latency": "its goal is a time: the peer handles single records and no micro-batches",
    "streams_latency_best": "its goal is a time: the peer handles single records and no micro-batches",
    "streams_state": "its peer is millrace with less state",
    "backfill_interference": "its peer is millrace without a backfill",
    "idle_fetches": "its peer is millrace without idle fetches",
    "slow_consumers": "its peer is millrace without slow consumers",
    "log_memory": "its peer is millrace with a shorter log",
    "pending_timers": "its peer is millrace with fewer timers",
    "acl_overhead": "its peer is millrace with fewer ACLs",
    "quota_isolation": "its peer is millrace without a client at its quota",
}
"""Benchmarks without a bar, because their figure is no ratio to a peer."""

AHEAD, BEHIND = "#2f81f7", "#d4691e"
TEXT = "#757c85"
_WIDTH, _LABEL_WIDTH, _VALUE_WIDTH = 880, 350, 56
_ROW, _HEADING, _TOP, _BOTTOM = 20, 34, 44, 34
_TICKS = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100, 200, 500, 1000)


class Axis:
    """The logarithmic axis. It begins and ends at ticks around all values and 1."""

    def __init__(self, values: Sequence[float]) -> None:
        self.low = max((tick for tick in _TICKS if tick <= min(*values, 0.5)), default=_TICKS[0])
        self.high = min((tick for tick in _TICKS if tick >= max(*values, 2)), default=_TICKS[-1])
        self.ticks = [tick for tick in _TICKS if self.low <= tick <= self.high]

    def at(self, value: float) -> float:
        """Return the place of a value, in units of the picture."""
        share = math.log(min(max(value, self.low), self.high) / self.low) / math.log(self.high / self.low)
        return _LABEL_WIDTH + share * (_WIDTH - _LABEL_WIDTH - _VALUE_WIDTH)


def picture(results: Mapping[str, Mapping[str, Any]]) -> str:
    """Draw the ratios as SVG. ``results`` are the result files by benchmark.

    Benchmarks without a result have no row.
    """
    groups = {
        group: {name: label for name, label in labels.items() if name in results} for group, labels in GROUPS.items()
    }
    shown = [name for labels in groups.values() for name in labels]
    axis = Axis([results[name]["ratio"]["median"] for name in shown])
    parts, y = [], _TOP
    for group, labels in groups.items():
        if not labels:
            continue
        parts.append(f'<text class="head" x="0" y="{y + 22}">{escape(group)}</text>')
        y += _HEADING
        for name, label in labels.items():
            parts.append(_bar(axis, y, name, label, results[name]["ratio"]))
            y += _ROW
    height = y + _BOTTOM
    return "\n".join((_head(height), *_grid(axis, y), *parts, "</svg>")) + "\n"


def number(ratio: float) -> str:
    """Format a ratio as a whole number from 10 up, with one decimal from 1 up, and two below."""
    return f"{ratio:.0f}" if ratio >= 10 else f"{ratio:.1f}" if ratio >= 1 else f"{ratio:.2f}"


def _head(height: int) -> str:
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" font-family="system-ui, sans-serif" '
        f'font-size="13" fill="{TEXT}" role="img" aria-label="Ratios of millrace to its peers">\n'
        "<style>.head { font-weight: 600; font-size: 14px } .value { font-weight: 600 } "
        f".ahead {{ fill: {AHEAD} }} .behind {{ fill: {BEHIND} }} "
        f".grid {{ stroke: {TEXT}; stroke-opacity: 0.25 }} .one {{ stroke: {TEXT}; stroke-width: 1.5 }} "
        f".spread {{ stroke: {TEXT}; stroke-width: 1.5 }}</style>\n"
        f'<rect class="ahead" x="{_LABEL_WIDTH}" y="4" width="12" height="12" rx="2"/>'
        f'<text x="{_LABEL_WIDTH + 18}" y="15">ahead of the peer</text>'
        f'<rect class="behind" x="{_LABEL_WIDTH + 160}" y="4" width="12" height="12" rx="2"/>'
        f'<text x="{_LABEL_WIDTH + 178}" y="15">behind the peer</text>'
        f'<text x="{_LABEL_WIDTH + 310}" y="15">bar: median; line: all runs</text>'
    )


def _grid(axis: Axis, bottom: int) -> list[str]:
    lines = []
    for tick in axis.ticks:
        x = f"{axis.at(tick):.1f}"
        kind = "one" if tick == 1 else "grid"
        lines.append(f'<line class="{kind}" x1="{x}" x2="{x}" y1="{_TOP - 8}" y2="{bottom + 6}"/>')
        lines += [
            f'<text x="{x}" y="{y}" text-anchor="middle" font-size="11">{tick:g}×</text>'
            for y in (_TOP - 12, bottom + 20)
        ]
    return lines


def _bar(axis: Axis, y: int, name: str, label: str, ratio: Mapping[str, float]) -> str:
    one, median = axis.at(1), axis.at(ratio["median"])
    kind = "ahead" if ratio["median"] >= 1 else "behind"
    middle = y + _ROW / 2
    return (
        f'<text x="12" y="{y + 14}">{escape(label)}</text>'
        f'<rect class="{kind}" x="{min(one, median):.1f}" y="{y + 3}" width="{max(abs(median - one), 1):.1f}" '
        f'height="{_ROW - 6}" rx="2"><title>{escape(name)}</title></rect>'
        f'<line class="spread" x1="{axis.at(ratio["min"]):.1f}" x2="{axis.at(ratio["max"]):.1f}" '
        f'y1="{middle}" y2="{middle}"/>'
        f'<text class="value {kind}" x="{_WIDTH}" y="{y + 14}" text-anchor="end">{number(ratio["median"])}×</text>'
    )
