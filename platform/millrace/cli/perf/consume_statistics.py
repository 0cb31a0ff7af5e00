"""Statistics of a consumer run (Kafka's ``ConsumerPerformance``).

The functions are pure: times are parameters.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

_MB: Final = 1024 * 1024
_FETCH_COLUMNS: Final = "rebalance.time.ms, fetch.time.ms, fetch.MB.sec, fetch.nMsg.sec"
HEADER: Final = f"start.time, end.time, data.consumed.in.MB, MB.sec, data.consumed.in.nMsg, nMsg.sec, {_FETCH_COLUMNS}"
DETAILED_HEADER: Final = (
    f"time, threadId, data.consumed.in.MB, MB.sec, data.consumed.in.nMsg, nMsg.sec, {_FETCH_COLUMNS}"
)


@dataclass(slots=True, kw_only=True)
class ConsumeStatistics:
    """Counters of records and bytes; times are in seconds since the epoch. Fetch time excludes rebalances."""

    started_s: float
    records: int = 0
    size_bytes: int = 0
    rebalance_s: float = 0.0
    _seen: tuple[float, int, int, float] = (0.0, 0, 0, 0.0)

    def consumed(self, records: int, size_bytes: int) -> None:
        """Count returned records and their bytes."""
        self.records += records
        self.size_bytes += size_bytes

    def total_line(self, now_s: float) -> str:
        """Return the line of the whole run."""
        figures = _figures(self.records, self.size_bytes, now_s - self.started_s, self.rebalance_s)
        return f"{_time(self.started_s)}, {_time(now_s)}, {figures}"

    def interval_line(self, now_s: float) -> str:
        """Return the line of the interval: data totals, and rates of the interval, as in Kafka's tool."""
        since_s, records, size_bytes, rebalance_s = self._seen
        elapsed_s = now_s - (since_s or self.started_s)
        waited_s = self.rebalance_s - rebalance_s
        self._seen = (now_s, self.records, self.size_bytes, self.rebalance_s)
        new_records, new_mb = self.records - records, (self.size_bytes - size_bytes) / _MB
        fetch_s = max(elapsed_s - waited_s, 0.0)
        return (
            f"{_time(now_s)}, 0, {self.size_bytes / _MB:.4f}, {_rate(new_mb, elapsed_s):.4f}, "
            f"{self.records}, {_rate(new_records, elapsed_s):.4f}, {int(waited_s * 1000)}, {int(fetch_s * 1000)}, "
            f"{_rate(new_mb, fetch_s):.4f}, {_rate(new_records, fetch_s):.4f}"
        )


def _figures(records: int, size_bytes: int, elapsed_s: float, rebalance_s: float) -> str:
    fetch_s = max(elapsed_s - rebalance_s, 0.0)
    mb = size_bytes / _MB
    return (
        f"{mb:.4f}, {_rate(mb, elapsed_s):.4f}, {records}, {_rate(records, elapsed_s):.4f}, "
        f"{int(rebalance_s * 1000)}, {int(fetch_s * 1000)}, {_rate(mb, fetch_s):.4f}, {_rate(records, fetch_s):.4f}"
    )


def _rate(amount: float, seconds: float) -> float:
    return amount / seconds if seconds > 0 else 0.0


def _time(seconds: float) -> str:
    """Format a time like Kafka's tool: ``yyyy-MM-dd HH:mm:ss:SSS``, here in UTC."""
    when = datetime.fromtimestamp(seconds, UTC)
    return f"{when:%Y-%m-%d %H:%M:%S}:{when.microsecond // 1000:03d}"
