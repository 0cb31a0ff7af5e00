"""Measured Spark code of both sides, in warm sessions with equal settings.

Each side has one session. Before the first timed run each side makes whole untimed ones: two at least, and for 75
seconds, because the JVM compiles for that long. Short runs therefore need more untimed runs than long ones. Each timed
run also follows an untimed one of its own side. While the other side was measured, Spark has ended the idle Python
workers, and the system may have reclaimed idle memory. A run of two seconds would show that, and one of thirty seconds
would not.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from benchmarks.harness import Benchmark, Context, Measure, Sample, Side
from benchmarks.ours import SETTINGS as OUR_SETTINGS
from benchmarks.peers import jars
from benchmarks.peers.kafka import SETTINGS as KAFKA_SETTINGS
from benchmarks.worker import Run, worker
from benchmarks.workspace import Workspace

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming import DataStreamReader

SPARK_CONF = {
    "spark.master": "local[2]",
    "spark.driver.memory": "4g",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.session.timeZone": "UTC",
    # As in pyspark_millrace.session(). These settings do not affect a source that runs in the JVM.
    "spark.python.unix.domain.socket.enabled": "true",
    "spark.python.daemon.module": "pyspark_millrace.environment.worker_daemon",
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
}
KAFKA_TUNED = {
    "kafka.max.poll.records": "20000",
    "kafka.max.partition.fetch.bytes": str(8 * 2**20),
    "kafka.receive.buffer.bytes": str(2 * 2**20),
}
"""Options of Spark's Kafka source for large reads: fewer polls and larger fetches than by default."""
KAFKA_PRODUCER_TUNED = {"kafka.batch.size": "262144", "kafka.linger.ms": "20"}
"""Options of Spark's Kafka sink for large writes."""
_PLAIN_RENAMES = {
    "spark.sql.streaming.checkpointFileManagerClass": (
        "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
    )
}
LOW_LATENCY_SETTINGS = "; checkpoints by plain renames and without checksum files (the profile low-latency)"
CLUSTER_CONF = {
    # Executors run in processes of their own, as on a cluster. The shuffle partitions are Spark's default.
    "spark.master": "local-cluster[2,1,1024]",
    "spark.executor.memory": "1g",
    "spark.sql.shuffle.partitions": "200",
}
"""Settings of a session whose tasks run in two executors."""
_WARM_UP_RUNS_MIN = 2
_WARM_UP_SECONDS = 75.0
SPARK_SETTINGS = "; Spark local[2], driver 4 GB, 2 shuffle partitions, one session for all runs"

CLUSTER_SETTINGS = (
    "; Spark with two executors of a core each, driver 4 GB, 200 shuffle partitions, one session for all runs"
)


@dataclass(frozen=True)
class Source:
    """The data of one side.

    A source has the location of the data, the number of records, and a folder for tables.
    """

    bootstrap: str
    topic: str
    records: int
    scratch: Path


@dataclass(frozen=True)
class Outcome:
    """The result of one run.

    The result has the seconds of the measured part, the read records, and an answer on which both sides must agree.
    ``figure`` is the measured figure if that is not records a second.
    """

    seconds: float
    records: int
    answer: Any
    figure: float | None = None


Topic = Literal["opaque", "typed", "skewed", "rows", "typed-json"]
"""Content of the measured topic. A Kafka producer fills the last two on both sides."""
Job = Callable[["SparkSession", Source], Outcome]


def benchmark(
    *,
    name: str,
    title: str,
    target_ratio: float | None = None,
    limit: float | None = None,
    unit: str = "rows/s",
    higher_is_better: bool = True,
    topic: Topic,
    times: int = 1,
    ours: str,
    peer: str,
    avro: bool = False,
    low_latency: bool = False,
) -> Benchmark:
    """Make a benchmark whose module has the two jobs as functions ``ours`` and ``peer``.

    The topic holds ``times`` as many records as the run has. With ``avro`` the values of Kafka's topic are Avro and not
    JSON. ``spark_session`` describes ``low_latency``.
    """
    settings = SPARK_SETTINGS + (LOW_LATENCY_SETTINGS if low_latency else "")
    return Benchmark(
        name=name,
        title=title,
        unit=unit,
        higher_is_better=higher_is_better,
        target_ratio=target_ratio,
        limit=limit,
        ours=Side(
            what=ours,
            settings=OUR_SETTINGS + settings,
            open=lambda context: _open_ours(context, name, topic, context.records * times, low_latency=low_latency),
        ),
        peer=Side(
            what=peer,
            settings=KAFKA_SETTINGS + settings,
            open=lambda context: _open_peer(
                context, name, topic, context.records * times, avro=avro, low_latency=low_latency
            ),
        ),
    )


def timed(action: Callable[[], Any]) -> tuple[float, Any]:
    """Return the duration of the action in seconds, and its result."""
    started = time.perf_counter()
    result = action()
    return time.perf_counter() - started, result


def stream_into_delta(frame: DataFrame, source: Source) -> Outcome:
    """Run a streaming frame with Trigger.AvailableNow into a new Delta table. The time is from start to termination.

    The answer is the number of rows that the table then has (counted after the clock has stopped).
    """
    table, checkpoint = _new_table(source)
    writer = frame.writeStream.format("delta").option("checkpointLocation", checkpoint).trigger(availableNow=True)
    seconds, _ = timed(lambda: writer.start(table).awaitTermination())
    return _counted(frame.sparkSession, table, seconds)


def ingest_into_delta(spark: SparkSession, source: Source, options: dict[str, str], **how: Any) -> Outcome:
    """Run the same by direct ingest with Trigger.AvailableNow, in which tasks write the files of the new table."""
    from pyspark_millrace.delta import ingest

    table, checkpoint = _new_table(source)
    given = {"kafka.bootstrap.servers": source.bootstrap, "subscribe": source.topic, "startingOffsets": "earliest"}
    seconds, _ = timed(lambda: ingest(spark, given | options, table, checkpoint=checkpoint, **how).awaitTermination())
    return _counted(spark, table, seconds)


def _new_table(source: Source) -> tuple[str, str]:
    """Return the paths of a table and of its query's checkpoint, after removing both."""
    folders = source.scratch / "table", source.scratch / "checkpoint"
    for folder in folders:
        shutil.rmtree(folder, ignore_errors=True)
    return str(folders[0]), str(folders[1])


def _counted(spark: SparkSession, table: str, seconds: float) -> Outcome:
    rows = spark.read.format("delta").load(table).count()
    return Outcome(seconds, rows, rows)


def kafka_stream(spark: SparkSession, source: Source, **options: str) -> DataStreamReader:
    """Read the whole topic with Spark's Kafka source, with options besides its defaults."""
    reader = spark.readStream.format("kafka").option("kafka.bootstrap.servers", source.bootstrap).options(**options)
    return reader.option("subscribe", source.topic).option("startingOffsets", "earliest")


def millrace_stream(spark: SparkSession, source: Source) -> DataStreamReader:
    """Read the whole topic with our source."""
    reader = spark.readStream.format("millrace").option("kafka.bootstrap.servers", source.bootstrap)
    return reader.option("subscribe", source.topic).option("startingOffsets", "earliest")


@contextlib.contextmanager
def serve(
    *,
    name: str,
    side: str,
    source: dict[str, str],
    jar_paths: list[str],
    low_latency: bool = False,
    conf: dict[str, str] | None = None,
) -> Iterator[Run]:
    """Run the worker, a warm session that runs one side of the benchmark ``name``."""
    job: Job = getattr(importlib.import_module(f"benchmarks.suite.{name}"), side)
    spark = spark_session(jar_paths, conf, low_latency=low_latency)
    where = Source(source["bootstrap"], source["topic"], int(source["records"]), Path(source["scratch"]))

    def run() -> dict[str, Any]:
        job(spark, where)
        outcome = job(spark, where)
        figure = outcome.records / outcome.seconds if outcome.figure is None else outcome.figure
        return {"figure": figure, "answer": outcome.answer}

    try:
        _warm_up(lambda: job(spark, where))
        yield run
    finally:
        spark.stop()
        shutil.rmtree(where.scratch, ignore_errors=True)


def _warm_up(run: Callable[[], object]) -> None:
    started, runs = time.monotonic(), 0
    while runs < _WARM_UP_RUNS_MIN or time.monotonic() - started < _WARM_UP_SECONDS:
        run()
        runs += 1


def spark_session(
    jar_paths: list[str], conf: Mapping[str, str] | None = None, *, low_latency: bool = False
) -> SparkSession:
    """Create the session of measured Spark code, with further settings.

    ``low_latency`` adds the settings of the profile of this name, which work for any source. The checkpoint file
    manager then renames files, and writes no files of checksums.
    """
    from pyspark.sql import SparkSession

    from pyspark_millrace.environment.session import worker_python, write_no_checksums

    settings = SPARK_CONF | dict(conf or {})
    # As in pyspark_millrace.session().
    is_local = settings["spark.master"].startswith("local[")
    os.environ["PYSPARK_PYTHON"] = worker_python() if is_local else sys.executable
    builder = SparkSession.builder.appName("benchmarks").config("spark.jars", ",".join(jar_paths))
    for option, value in (settings | (_PLAIN_RENAMES if low_latency else {})).items():
        builder = builder.config(option, value)
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    if low_latency:
        write_no_checksums(session)
    return session


def jar_paths(workspace: Workspace) -> list[str]:
    """Return the class path of both sides' sessions."""
    return [str(path) for jar_set in (jars.SPARK_KAFKA, jars.DELTA) for path in jars.paths(jar_set, workspace)]


@contextlib.contextmanager
def _open_ours(context: Context, name: str, topic: Topic, records: int, *, low_latency: bool) -> Iterator[Measure]:
    broker = context.millrace
    if topic in ("rows", "typed-json"):
        filled = broker.topic_filled_by_kafka_client(records, typed=topic == "typed-json")
    else:
        filled = broker.filled_topic(records, typed=topic == "typed", skewed=topic == "skewed")
    bootstrap = broker.bootstrap
    with measured(context, name, "ours", bootstrap, filled, records, low_latency=low_latency) as measure:
        yield measure


@contextlib.contextmanager
def _open_peer(
    context: Context, name: str, topic: Topic, records: int, *, avro: bool, low_latency: bool
) -> Iterator[Measure]:
    filled = context.kafka.filled_topic(records, skewed=topic == "skewed", avro=avro)
    bootstrap = context.kafka.bootstrap
    with measured(context, name, "peer", bootstrap, filled, records, low_latency=low_latency) as measure:
        yield measure


@contextlib.contextmanager
def measured(
    context: Context,
    name: str,
    side: str,
    bootstrap: str,
    topic: str,
    records: int,
    *,
    low_latency: bool = False,
    conf: Mapping[str, str] | None = None,
) -> Iterator[Measure]:
    """Open the worker of one side and return its measurement. ``conf`` are further settings of its session."""
    workspace = context.workspace
    scratch = str(workspace.folder(f"scratch/{side}", empty=True))
    source = {"bootstrap": bootstrap, "topic": topic, "records": str(records), "scratch": scratch}
    arguments: dict[str, Any] = {"name": name, "side": side, "source": source, "jar_paths": jar_paths(workspace)}
    arguments |= {"low_latency": low_latency, "conf": dict(conf or {})}
    with worker(workspace, f"{name}-{side}", "benchmarks.spark:serve", arguments) as run:

        def measure() -> Sample:
            result = run()
            return Sample(figure=result["figure"], answer=result["answer"])

        yield measure
