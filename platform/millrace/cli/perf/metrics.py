"""Output of ``--print-metrics``: Kafka's names and format where possible, then millrace's own.

Kafka's rates and averages cover about the last 30 seconds; these cover the whole run.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from millrace.clients.model import ConsumerStatistics, ProducerStatistics


def producer_metrics(
    counts: ProducerStatistics, client_id: str, topic: str, elapsed_s: float, buffer_bytes: int
) -> dict[str, float]:
    """Return a producer's metrics; ``buffer_bytes`` is its ``buffer.memory``."""
    by_client, by_topic = f"{{client-id={client_id}}}", f"{{client-id={client_id}, topic={topic}}}"
    return {
        f"producer-metrics:record-send-total:{by_client}": counts.records_sent,
        f"producer-metrics:record-send-rate:{by_client}": _ratio(counts.records_sent, elapsed_s),
        f"producer-metrics:record-error-total:{by_client}": counts.records_failed,
        f"producer-metrics:batch-size-avg:{by_client}": _ratio(counts.bytes_sent, counts.batches_sent),
        f"producer-metrics:records-per-request-avg:{by_client}": _ratio(counts.records_sent, counts.requests),
        f"producer-metrics:request-total:{by_client}": counts.requests,
        f"producer-metrics:request-rate:{by_client}": _ratio(counts.requests, elapsed_s),
        f"producer-metrics:buffer-total-bytes:{by_client}": buffer_bytes,
        f"producer-metrics:buffer-available-bytes:{by_client}": buffer_bytes - counts.buffer_bytes,
        f"producer-topic-metrics:record-send-total:{by_topic}": counts.records_sent,
        f"producer-topic-metrics:record-error-total:{by_topic}": counts.records_failed,
        f"producer-topic-metrics:byte-total:{by_topic}": counts.bytes_sent,
        f"producer-topic-metrics:byte-rate:{by_topic}": _ratio(counts.bytes_sent, elapsed_s),
        f"millrace-producer-metrics:batches-sent-total:{by_client}": counts.batches_sent,
        f"millrace-producer-metrics:batches-repeated-total:{by_client}": counts.batches_repeated,
        f"millrace-producer-metrics:batches-waiting:{by_client}": counts.batches_waiting,
    }


def consumer_metrics(counts: ConsumerStatistics, client_id: str, elapsed_s: float) -> dict[str, float]:
    """Return a consumer's metrics. Bytes are those of stored batches, fetched or read from local files."""
    by_client = f"{{client-id={client_id}}}"
    size_bytes = counts.fetched_bytes + counts.mapped_bytes
    fetching, coordinating = "consumer-fetch-manager-metrics", "consumer-coordinator-metrics"
    return {
        f"{fetching}:records-consumed-total:{by_client}": counts.records,
        f"{fetching}:records-consumed-rate:{by_client}": _ratio(counts.records, elapsed_s),
        f"{fetching}:bytes-consumed-total:{by_client}": size_bytes,
        f"{fetching}:bytes-consumed-rate:{by_client}": _ratio(size_bytes, elapsed_s),
        f"{fetching}:fetch-total:{by_client}": counts.fetches,
        f"{fetching}:fetch-rate:{by_client}": _ratio(counts.fetches, elapsed_s),
        f"{fetching}:fetch-size-avg:{by_client}": _ratio(counts.fetched_bytes, counts.fetches),
        f"{coordinating}:assigned-partitions:{by_client}": counts.assigned_partitions,
        f"{coordinating}:rebalance-total:{by_client}": counts.rebalances,
        f"millrace-consumer-metrics:poll-total:{by_client}": counts.polls,
        f"millrace-consumer-metrics:bytes-mapped-total:{by_client}": counts.mapped_bytes,
        f"millrace-consumer-metrics:bytes-waiting:{by_client}": counts.waiting_bytes,
        f"millrace-consumer-metrics:bytes-asked:{by_client}": counts.asked_bytes,
    }


def metrics_text(metrics: Mapping[str, float]) -> str:
    """Format metrics by name like Kafka's tools: after an empty line and a heading."""
    width = max(map(len, metrics))
    lines = [f"{name:<{width}} : {value:.3f}" for name, value in sorted(metrics.items())]
    return "\n".join(["", f"{'Metric Name':<{width}}   Value", *lines])


def _ratio(total: float, of: float) -> float:
    """Return a mean or a rate; NaN for a zero denominator, as in Kafka."""
    return total / of if of else float("nan")
