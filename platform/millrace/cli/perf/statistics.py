"""Statistics of a producer run in the format of Kafka's tool.

The functions are pure: times are parameters, in ms.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import Final

_SAMPLES_MAX: Final = 500_000
_BYTES_PER_MB: Final = 1024 * 1024


def percentiles(sorted_latencies: Sequence[float], wanted: Sequence[float]) -> list[float]:
    """Return the percentiles of latencies, like ``ProducerPerformance``; 0 without latencies."""
    count = len(sorted_latencies)
    return [sorted_latencies[min(int(part * count), count - 1)] if count else 0.0 for part in wanted]


class ProduceStatistics:
    """Statistics of acknowledged records (``Stats`` of ``ProducerPerformance``).

    They cover the current interval and the whole run. Latencies are measured for one record in ``sampling``, so that at
    most half a million are kept.
    """

    def __init__(self, num_records: int, started_ms: float) -> None:
        self.sampling: Final = max(num_records // _SAMPLES_MAX, 1)
        self._started_ms = started_ms
        self._interval_started_ms = started_ms
        self._latencies = array("f")
        self._count = self._bytes = 0
        self._interval_count = self._interval_bytes = 0
        self._interval_first = 0

    @property
    def count(self) -> int:
        """Number of acknowledged records."""
        return self._count

    def acknowledged(self, count: int, size_bytes: int) -> None:
        """Count acknowledged records and their bytes."""
        self._count += count
        self._bytes += size_bytes
        self._interval_count += count
        self._interval_bytes += size_bytes

    def measured(self, latency_ms: float) -> None:
        """Add the latency of a record from send to acknowledgement."""
        self._latencies.append(latency_ms)

    def interval_ms(self, now_ms: float) -> float:
        """Return the duration of the current interval."""
        return now_ms - self._interval_started_ms

    def interval_line(self, now_ms: float) -> str:
        """Return the line of the interval, which ends now, and begin another."""
        elapsed_s = max(now_ms - self._interval_started_ms, 1e-3) / 1000
        latencies = self._latencies[self._interval_first :]
        line = (
            f"{self._interval_count} records sent, {self._interval_count / elapsed_s:.1f} records/sec "
            f"({self._interval_bytes / elapsed_s / _BYTES_PER_MB:.2f} MB/sec), "
            f"{_mean(latencies):.1f} ms avg latency, {max(latencies, default=0.0):.1f} ms max latency."
        )
        self._interval_started_ms = now_ms
        self._interval_count = self._interval_bytes = 0
        self._interval_first = len(self._latencies)
        return line

    def total_line(self, now_ms: float, what: str = "records") -> str:
        """Return the line of the whole run, or of the part named by ``what``."""
        elapsed_s = max(now_ms - self._started_ms, 1e-3) / 1000
        latencies = sorted(self._latencies)
        p50, p95, p99, p999 = percentiles(latencies, (0.5, 0.95, 0.99, 0.999))
        return (
            f"{self._count} {what} sent, {self._count / elapsed_s:f} records/sec "
            f"({self._bytes / elapsed_s / _BYTES_PER_MB:.2f} MB/sec), "
            f"{_mean(latencies):.2f} ms avg latency, {max(latencies, default=0.0):.2f} ms max latency, "
            f"{int(p50)} ms 50th, {int(p95)} ms 95th, {int(p99)} ms 99th, {int(p999)} ms 99.9th."
        )


class Throttle:
    """Rate limit of ``per_second`` records; -1 or 0 means no limit."""

    def __init__(self, per_second: float, started_s: float) -> None:
        self._per_second = per_second
        self._started_s = started_s

    def wait_s(self, sent: int, now_s: float) -> float:
        """Return the seconds until record number ``sent`` is due."""
        if self._per_second <= 0:
            return 0.0
        return max(self._started_s + sent / self._per_second - now_s, 0.0)


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else 0.0
