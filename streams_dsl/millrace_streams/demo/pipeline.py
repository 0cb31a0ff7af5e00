"""The Spark part of the demo: every query in one session. ``spark-submit`` runs this file.

The session starts while the demo still loads its topics. The queries start once ``--begin`` exists. Each stage appends
its progress as JSON lines to ``--progress``, which the demo reads (``millrace_streams.demo.stages``).
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from millrace_streams.application import load_topology
from millrace_streams.demo.stages import BACKFILL, SPARK, STREAM, StageReporter, ingest_stage
from pyspark_millrace import session
from pyspark_millrace.delta import ingest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_POLL_SECONDS: Final = 0.05


def main(
    *,
    bootstrap_servers: Annotated[str, typer.Option()],
    work_dir: Annotated[Path, typer.Option()],
    topology: Annotated[str, typer.Option(help="file of the topology")],
    topic: Annotated[list[str], typer.Option(help="topic to copy into a Delta table; repeatable")],
    begin: Annotated[Path, typer.Option(help="file that exists once the topics are loaded")],
    progress: Annotated[Path, typer.Option(help="file to which the progress is appended")],
) -> None:
    """Start Spark, wait for the records, and run one stage after another."""
    reporter = StageReporter(progress)
    with reporter.stage(SPARK):
        spark = session("millrace demo")
        spark.sparkContext.setLogLevel("WARN")
    while not begin.exists():
        time.sleep(_POLL_SECONDS)
    pipeline = Pipeline(spark, bootstrap_servers, work_dir, reporter)
    for each in topic:
        pipeline.ingest(each)
    pipeline.stream(topology)
    pipeline.backfill(topology)


class Pipeline:
    """Stages of the demo that need Spark. Each resumes from its checkpoint, or replaces its table."""

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
        """Run the topology as a streaming query over the records in its topic."""
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


if __name__ == "__main__":
    typer.run(main)
