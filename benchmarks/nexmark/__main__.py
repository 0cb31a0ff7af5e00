"""Command that measures rows/s per core of each Nexmark query.

Run it by ``python -m benchmarks.nexmark``.

It writes ``RESULTS.md`` and its plot. Each query runs as a batch over typed topics of one broker into Spark's ``noop``
sink. A query that processes each bid separately also runs as a stream (``availableNow``, with a checkpoint). Rows are
those of the topics that it reads.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from pyspark.sql import DataFrame

from benchmarks import machine, spark
from benchmarks.nexmark import catalogue, frames, results, topics
from benchmarks.nexmark.generator import Generator, Settings
from benchmarks.nexmark.results import Measured
from benchmarks.ours import PARTITIONS, MillraceBroker
from benchmarks.workspace import Workspace
from millrace.clients import Producer

CORES = 2
_SEED = 7


def main() -> None:
    """Run the measurements of the command line, and write the report."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.nexmark", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--events", type=int, default=5_000_000, help="events of all kinds (default: 5 million)")
    parser.add_argument("--repeats", type=int, default=3, help="timed runs of each query (default: 3)")
    parser.add_argument("--only", metavar="QUERY", action="append", choices=list(catalogue.QUERIES), help="this one")
    parser.add_argument("--no-write", action="store_true", help="print the figures only")
    given = parser.parse_args()
    with Workspace() as workspace, MillraceBroker(workspace, "nexmark", empty=True) as broker:
        rows = _fill(broker, given.events)
        session = spark.spark_session(spark.jar_paths(workspace))
        session.conf.set("spark.sql.shuffle.partitions", str(CORES))
        try:
            house = _House(frames.Events(session, broker.bootstrap), rows, workspace.folder("nexmark-checkpoints"))
            measured = [_shown(house.measure(name, given.repeats)) for name in given.only or catalogue.QUERIES]
        finally:
            session.stop()
    if not given.no_write:
        results.write(measured, events=given.events, repeats=given.repeats)


def _fill(broker: MillraceBroker, count: int) -> dict[str, int]:
    """Fill the topics, and return the number of rows of each."""
    print(f"filling the topics with {count:,} events", flush=True)
    house = Generator(Settings(seed=_SEED))
    with broker.admin() as admin, Producer({"bootstrap.servers": broker.bootstrap}) as producer:
        topics.create(admin, topics.Topics(), partitions=PARTITIONS)
        topics.fill(producer, topics.Topics(), house, count)
    return {name: broker.count(name) for name in catalogue.TABLES}


@dataclass(frozen=True)
class _House:
    """The filled topics, and the folder of streams' checkpoints."""

    events: frames.Events
    rows: dict[str, int]
    scratch: Path

    def measure(self, name: str, repeats: int) -> Measured:
        """Measure one query. The first run of each kind is untimed."""
        rows = sum(self.rows[table] for table in catalogue.QUERIES[name].tables)
        batch = _seconds(lambda: _run_batch(frames.query(name, self.events)), repeats)
        stream = None
        if name in frames.STATELESS:
            stream = _seconds(lambda: self._run_stream(name), repeats)
        return Measured(name, rows, rows / batch / CORES, stream and rows / stream / CORES)

    def _run_stream(self, name: str) -> None:
        frame = frames.query(name, replace(self.events, is_stream=True))
        shutil.rmtree(self.scratch, ignore_errors=True)
        writer = frame.writeStream.format("noop").option("checkpointLocation", str(self.scratch))
        writer.trigger(availableNow=True).start().awaitTermination()


def _run_batch(frame: DataFrame) -> None:
    frame.write.format("noop").mode("overwrite").save()


def _seconds(action: Callable[[], None], repeats: int) -> float:
    """Return the median of the timed runs."""
    action()
    taken = []
    for _ in range(repeats):
        machine.wait_until_quiet(120)
        started = time.perf_counter()
        action()
        taken.append(time.perf_counter() - started)
    return statistics.median(taken)


def _shown(measured: Measured) -> Measured:
    print(f"  {results.line(measured)}", flush=True)
    return measured


if __name__ == "__main__":
    main()
