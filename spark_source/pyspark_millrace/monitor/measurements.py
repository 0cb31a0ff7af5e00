"""Totals of each query of this process, for the metrics.

Invariant: of the ended queries, only the last ``_ENDED_QUERIES_MAX`` are kept. So a driver that starts many queries
neither grows nor requests the lag of every query that it ever ran.
"""

from __future__ import annotations

import threading
from collections import defaultdict
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Final

from pyspark_millrace.monitor.progress import BatchProgress, SourceProgress
from pyspark_millrace.reading.reports import ReadReport

_ENDED_QUERIES_MAX: Final = 100


@dataclass(slots=True)
class QueryTotals:
    """Totals of one query over all its runs in this process.

    ``runs`` are the active runs.
    """

    name: str = ""
    runs: set[str] = field(default_factory=set)
    batch_id: int = -1
    batches: int = 0
    rows: int = 0
    finished_at_s: float = 0.0
    phases_ms: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    sources: tuple[SourceProgress, ...] = ()


@dataclass(slots=True)
class ReadTotals:
    """Totals of the reads of one topic by a query's tasks."""

    tasks: int = 0
    rows: int = 0
    batches: int = 0
    read_bytes: int = 0
    skipped_bytes: int = 0
    skipped_batches: int = 0
    pruned_bytes: int = 0
    seconds: float = 0.0


@dataclass(slots=True)
class Totals:
    """All totals: queries by id, reads by query id and topic."""

    queries: dict[str, QueryTotals] = field(default_factory=dict)
    reads: dict[tuple[str, str], ReadTotals] = field(default_factory=dict)


class Measurements:
    """Accumulator of reports. Thread safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._totals = Totals()

    def started(self, query_id: str, run_id: str, name: str) -> None:
        """Record the start or restart of a query."""
        with self._lock:
            query = self._totals.queries.setdefault(query_id, QueryTotals())
            query.name = name
            query.runs.add(run_id)

    def terminated(self, query_id: str, run_id: str) -> None:
        """Record the end of a run. A new run may have been reported before."""
        with self._lock:
            if (query := self._totals.queries.pop(query_id, None)) is not None:
                query.runs.discard(run_id)
                self._totals.queries[query_id] = query  # now the query that ended last
                self._forget_ended()

    def progressed(self, batch: BatchProgress, now_s: float) -> None:
        """Add a finished batch."""
        with self._lock:
            query = self._totals.queries.setdefault(batch.query_id, QueryTotals())
            query.name, query.sources = batch.name, batch.sources
            query.batch_id, query.finished_at_s = batch.batch_id, now_s
            query.batches += 1
            query.rows += batch.rows
            for phase, took_ms in batch.phases_ms.items():
                query.phases_ms[phase] += took_ms

    def read(self, report: ReadReport) -> None:
        """Add the report of a task."""
        with self._lock:
            totals = self._totals.reads.setdefault((report.query_id, report.topic), ReadTotals())
            totals.tasks += 1
            totals.rows += report.rows
            totals.batches += report.batches
            totals.read_bytes += report.read_bytes
            totals.skipped_bytes += report.skipped_bytes
            totals.skipped_batches += report.skipped_batches
            totals.pruned_bytes += report.pruned_bytes
            totals.seconds += report.seconds

    def _forget_ended(self) -> None:
        ended = [query_id for query_id, query in self._totals.queries.items() if not query.runs]
        for query_id in ended[:-_ENDED_QUERIES_MAX]:
            del self._totals.queries[query_id]
            for key in [key for key in self._totals.reads if key[0] == query_id]:
                del self._totals.reads[key]

    def snapshot(self) -> Totals:
        """Return a copy of all totals."""
        with self._lock:
            return deepcopy(self._totals)
