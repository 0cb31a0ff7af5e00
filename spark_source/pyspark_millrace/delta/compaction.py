"""Compaction of a table's small files by Delta's OPTIMIZE between micro-batches.

A micro-batch adds a file for each of its tasks, or for each partition of the table in each task. A query that writes
every few seconds therefore leaves many small files. OPTIMIZE rewrites them in a separate commit that changes no row.
Readers of the table's stream or of its change feed do not see that commit. An OPTIMIZE that is killed has no effect.
OPTIMIZE does not touch the transactions of queries. The replaced files stay until VACUUM.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from millrace.errors import UsageError
from pyspark_millrace.delta.transactions import conflict_errors
from pyspark_millrace.session_settings import set_for_now

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_log = logging.getLogger(__name__)

_SETTINGS: Final = (
    "spark.databricks.delta.optimize.minFileSize",
    "spark.databricks.delta.optimize.maxFileSize",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Compaction:
    """Frequency of compaction, for files smaller than ``target_bytes``.

    A compaction starts after ``after_batches`` batches, or after ``after_seconds`` seconds or ``after_bytes`` added
    bytes since the last one, whichever comes first. ``None`` disables one of these conditions. Batches are counted by
    their numbers, across restarts; seconds and bytes are counted from the start of the query.
    """

    after_batches: int | None = 64
    after_seconds: float | None = None
    after_bytes: int | None = None
    target_bytes: int = 128 * 2**20

    def __post_init__(self) -> None:
        if self.after_batches is None and self.after_seconds is None and self.after_bytes is None:
            raise UsageError("Compaction: give after_batches, after_seconds or after_bytes")
        for name in ("after_batches", "after_seconds", "after_bytes", "target_bytes"):
            value = getattr(self, name)
            if value is not None and value <= 0:
                raise UsageError(f"Compaction: {name}={value}: expected more than 0")

    def is_due(self, batch_id: int, seconds: float, size_bytes: int) -> bool:
        """Return whether compaction is due after this batch.

        ``seconds`` and ``size_bytes`` are counted from the last compaction, or from the query's start.
        """
        by_batches = self.after_batches is not None and (batch_id + 1) % self.after_batches == 0
        by_seconds = self.after_seconds is not None and seconds >= self.after_seconds
        return by_batches or by_seconds or (self.after_bytes is not None and size_bytes >= self.after_bytes)


class Compactor:
    """Compaction of one table when it is due."""

    def __init__(self, compaction: Compaction, path: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._compaction = compaction
        self._path = path
        self._clock = clock
        self._last = clock()
        self._added_bytes = 0

    def after(self, spark: SparkSession, batch_id: int, added_bytes: int | None = None) -> None:
        """Compact the table if that is due after a batch which added files of ``added_bytes`` to the table.

        If ``added_bytes`` is ``None``, the table's log gives the number, but only if ``after_bytes`` is set. If another
        writer's commit conflicts, the files wait until compaction is due again.
        """
        if self._compaction.after_bytes is not None:
            self._added_bytes += _last_added_bytes(spark, self._path) if added_bytes is None else added_bytes
        if not self._compaction.is_due(batch_id, self._clock() - self._last, self._added_bytes):
            return
        self._last, self._added_bytes = self._clock(), 0
        try:
            metrics = compact(spark, self._path, self._compaction.target_bytes)
        except conflict_errors() as error:
            _log.warning(
                "compaction of %s failed, because another writer committed first; a later batch compacts it: %s",
                self._path,
                error,
            )
        else:
            _log.info(
                "compaction of %s replaced %s files by %s", self._path, metrics.numFilesRemoved, metrics.numFilesAdded
            )


def _last_added_bytes(spark: SparkSession, path: str) -> int:
    """Return the size of the files that the table's last commit added, in bytes."""
    from delta.tables import DeltaTable

    metrics = DeltaTable.forPath(spark, path).history(1).head()["operationMetrics"]
    return int(metrics.get("numTargetBytesAdded", metrics.get("numOutputBytes", 0)))


def compact(spark: SparkSession, path: str, target_bytes: int) -> Any:
    """Compact the files of a table that are smaller than ``target_bytes``; returns the metrics of OPTIMIZE."""
    from delta.tables import DeltaTable

    with set_for_now(spark, dict.fromkeys(_SETTINGS, str(target_bytes))):
        return DeltaTable.forPath(spark, path).optimize().executeCompaction().head()["metrics"]
