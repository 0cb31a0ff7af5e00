"""The Spark part of the demo: every query in one session. ``spark-submit`` runs this file.

The session starts while the demo still loads its topics. The queries start once ``--begin`` exists. Each stage appends
its progress as JSON lines to ``--progress``, which the demo reads (``millrace_streams.demo.stages``).
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Final

from millrace_streams.application import load_topology
from millrace_streams.demo.stages import BACKFILL, SPARK, STREAM, StageReporter, ingest_stage
from pyspark_millrace import session
from pyspark_millrace.delta import ingest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_POLL_SECONDS: Final = 0.05


def main() -> None:
    """Start Spark, wait for the records, and run one stage after another."""
    parsed = _arguments()
    reporter = StageReporter(parsed.progress)
    with reporter.stage(SPARK):
        spark = session("millrace demo")
        spark.sparkContext.setLogLevel("WARN")
    while not parsed.begin.exists():
        time.sleep(_POLL_SECONDS)
    pipeline = Pipeline(spark, parsed.bootstrap_servers, parsed.work_dir, reporter)
    for topic in parsed.topics:
        pipeline.ingest(topic)
    pipeline.stream(parsed.topology)
    pipeline.backfill(parsed.topology)


class Pipeline:
    """The stages of the demo that need Spark. Each goes on from its checkpoint, or replaces its table."""

    def __init__(self, spark: SparkSession, bootstrap_servers: str, work_dir: Path, reporter: StageReporter) -> None:
        self._spark: Final = spark
        self._servers: Final = bootstrap_servers
        self._work_dir: Final = work_dir
        self._reporter: Final = reporter

    def ingest(self, topic: str) -> None:
        """Copy a topic into a Delta table, exactly once."""
        with self._reporter.stage(ingest_stage(topic)) as add_rows:
            query = ingest(
                self._spark,
                {"kafka.bootstrap.servers": self._servers, "subscribe": topic, "startingOffsets": "earliest"},
                str(self._work_dir / "tables" / topic),
                checkpoint=str(self._work_dir / "checkpoints" / topic),
                on_batch=lambda batch: add_rows(batch.rows),
            )
            query.awaitTermination()

    def stream(self, topology: str) -> None:
        """Run the topology as a streaming query over what its topic holds."""
        from millrace_streams import run_stream

        with self._reporter.stage(STREAM) as add_rows:
            query = run_stream(
                load_topology(topology),
                self._spark,
                tables=str(self._work_dir / "tables" / "hourly_departures"),
                checkpoint=str(self._work_dir / "checkpoints" / "hourly_departures"),
                bootstrap_servers=self._servers,
                available_now=True,
                on_batch=lambda batch: add_rows(batch.records),
            )
            query.awaitTermination()

    def backfill(self, topology: str) -> None:
        """Run the same topology as one batch into a second table, which is replaced."""
        from millrace_streams import run_batch

        with self._reporter.stage(BACKFILL) as add_rows:
            result = run_batch(
                load_topology(topology),
                self._spark,
                tables=str(self._work_dir / "tables" / "hourly_departures_backfill"),
                bootstrap_servers=self._servers,
            )
            add_rows(result.records)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    add: Callable[..., argparse.Action] = parser.add_argument
    add("--bootstrap-servers", required=True)
    add("--work-dir", required=True, type=Path)
    add("--topology", required=True, help="file of the topology")
    add("--topics", required=True, nargs="+", help="topics to copy into Delta tables")
    add("--begin", required=True, type=Path, help="file that exists once the topics are loaded")
    add("--progress", required=True, type=Path, help="file to which the progress is appended")
    return parser.parse_args()


if __name__ == "__main__":
    main()
