"""Tests of metrics in the format of Kafka's tools."""

from __future__ import annotations

from millrace.cli.perf.metrics import consumer_metrics, metrics_text, producer_metrics
from millrace.clients.model import ConsumerStatistics, ProducerStatistics


def test_names_are_sorted_and_lined_up_and_numbers_have_three_digits() -> None:
    assert metrics_text({"b:longer:{}": 2, "a:x:{}": 1.5}).splitlines() == [
        "",
        "Metric Name   Value",
        "a:x:{}      : 1.500",
        "b:longer:{} : 2.000",
    ]


def test_a_producer_has_totals_rates_and_averages() -> None:
    counts = ProducerStatistics(
        records_sent=1000,
        records_failed=2,
        batches_sent=10,
        bytes_sent=5000,
        batches_repeated=1,
        requests=5,
        batches_waiting=0,
        buffer_bytes=24,
    )
    metrics = producer_metrics(counts, "c", "t", 2.0, 1024)
    by_client = "{client-id=c}"
    assert metrics[f"producer-metrics:record-send-rate:{by_client}"] == 500
    assert metrics[f"producer-metrics:batch-size-avg:{by_client}"] == 500
    assert metrics[f"producer-metrics:records-per-request-avg:{by_client}"] == 200
    assert metrics[f"producer-metrics:buffer-available-bytes:{by_client}"] == 1000
    assert metrics["producer-topic-metrics:byte-rate:{client-id=c, topic=t}"] == 2500


def test_a_consumer_that_fetched_nothing_has_no_averages() -> None:
    counts = ConsumerStatistics(
        polls=1,
        records=7,
        fetches=0,
        fetched_bytes=0,
        mapped_bytes=70,
        waiting_bytes=0,
        asked_bytes=0,
        assigned_partitions=1,
        rebalances=1,
    )
    metrics = consumer_metrics(counts, "", 7.0)
    assert metrics["consumer-fetch-manager-metrics:bytes-consumed-total:{client-id=}"] == 70
    assert metrics["consumer-fetch-manager-metrics:records-consumed-rate:{client-id=}"] == 1
    assert "fetch-size-avg:{client-id=}" in metrics_text(metrics)
    assert "nan" in metrics_text(metrics)
