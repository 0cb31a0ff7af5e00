"""Waits and durations of micro-batches beside the benchmark."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from benchmarks.workspace import BenchmarkError

if TYPE_CHECKING:
    from pyspark.sql.streaming import StreamingQuery


def wait_for(query: StreamingQuery, is_there: Callable[[], bool], *, seconds_max: float) -> None:
    """Wait for an effect of the query. Raises ``BenchmarkError`` when the query makes no progress."""
    deadline = time.monotonic() + seconds_max
    while not is_there():
        if not query.isActive or time.monotonic() > deadline:
            raise BenchmarkError(f"the query does not go on: {query.exception()}")
        time.sleep(0.05)


def durations_ms(query: StreamingQuery, first: int, end: int) -> list[float]:
    """Return the durations of those of these micro-batches that read any records, as far as Spark has reported them."""
    found = {each["batchId"]: each["durationMs"] for each in query.recentProgress if "addBatch" in each["durationMs"]}
    return [found[number]["triggerExecution"] for number in range(first, end) if number in found]
