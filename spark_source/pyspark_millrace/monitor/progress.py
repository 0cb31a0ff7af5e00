"""Spark's progress reports (``StreamingQueryProgress``), reduced to millrace sources.

Spark Connect reports offsets as text within the JSON text.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from millrace.errors import UsageError
from pyspark_millrace.origin import QueryOrigin, origin_of
from pyspark_millrace.planning.offsets import StreamOffsets


@dataclass(frozen=True, slots=True)
class SourceProgress:
    """Progress of one source. ``origin`` is None if the report does not name the brokers."""

    end: StreamOffsets
    rows: int
    origin: QueryOrigin | None


@dataclass(frozen=True, slots=True)
class BatchProgress:
    """A finished batch; ``phases_ms`` is Spark's ``durationMs``, the time per phase."""

    query_id: str
    run_id: str
    name: str
    batch_id: int
    phases_ms: Mapping[str, int]
    sources: tuple[SourceProgress, ...]

    @property
    def rows(self) -> int:
        """Rows that Spark received from millrace sources."""
        return sum(source.rows for source in self.sources)


def parse_progress(text: str) -> BatchProgress | None:
    """Parse ``StreamingQueryProgress.json``; returns None without a millrace source."""
    report = json.loads(text)
    sources = tuple(found for source in report["sources"] if (found := _source(source)) is not None)
    if not sources:
        return None
    return BatchProgress(
        query_id=report["id"],
        run_id=report["runId"],
        name=report.get("name") or "",
        batch_id=report["batchId"],
        phases_ms=report.get("durationMs") or {},
        sources=sources,
    )


def _source(report: Mapping[str, Any]) -> SourceProgress | None:
    end = _json(report.get("endOffset"))
    try:
        offsets = StreamOffsets.from_json(end)
    except UsageError:
        return None  # a source of another format
    return SourceProgress(
        offsets, max(0, report.get("numInputRows") or 0), origin_of(_json(report.get("latestOffset")))
    )


def _json(value: Any) -> Mapping[str, Any]:
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except ValueError:
            return {}
    return value if isinstance(value, dict) else {}
