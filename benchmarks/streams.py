"""Topologies of our DSL on Spark beside Kafka Streams.

Both sides process the same records, and broker and fetch are included. Each side reads a whole topic from its start, in
a process that has run the topology for 75 seconds before. The clock runs from the start of the query, or of
``KafkaStreams``, to the last record. Kafka Streams has two threads, as Spark has two cores. Both sides hand their
results to a function, and the results must be the same. Kafka Streams emits the results that its cache holds at the
last record after the clock has stopped. This is to its advantage.
"""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from confluent_kafka import Producer as KafkaProducer

from benchmarks import data
from benchmarks.harness import Benchmark, Context, Measure, Sample, Side
from benchmarks.ours import SETTINGS as OUR_SETTINGS
from benchmarks.ours import TOPIC_CONFIGS
from benchmarks.peers import jars
from benchmarks.peers.kafka import PARTITIONS, KafkaBroker
from benchmarks.peers.kafka import SETTINGS as KAFKA_SETTINGS
from benchmarks.spark import SPARK_SETTINGS, Outcome, Source, measured, timed
from benchmarks.worker import served

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from millrace_streams import Topology

KEYS = 10_000
KEYS_MANY = 1_000_000
BATCH_RECORDS = 1_000_000
WEIGHTS = "weights"
"""The topic of a joined table, with a number for each word."""
_SOURCE = Path(__file__).parent / "peers" / "java" / "Streams.java"
_HEAP = "1500m"
_HEAP_TUNED = "3g"
_HEAP_MANY = "6g"
"""With a million keys, the newest count of each key and minute is kept for the comparison, and must not fill the
heap.
"""
_CACHE = "statestore.cache.max.bytes"
TUNED = {
    _CACHE: str(2**30),
    "max.poll.records": "10000",
    "buffered.records.per.partition": "20000",
    "producer.linger.ms": "100",
    "producer.batch.size": str(2**18),
    "producer.compression.type": "lz4",
}
"""The fastest options of Kafka Streams with few keys: state in its cache, large polls, large batches."""

Answer = list[float]
"""The number of results, and their sum."""


def benchmark(
    *,
    name: str,
    title: str,
    mode: str,
    target_ratio: float,
    ours: str,
    peer: str,
    words: int = KEYS,
    typed: bool = False,
    batches: str = f"micro-batches of {BATCH_RECORDS:,} records",
    tuned: bool = False,
) -> Benchmark:
    """Make a benchmark whose module runs our side as ``ours(spark, source)``. ``mode`` is Kafka Streams' topology.

    ``tuned`` gives Kafka Streams the options of ``TUNED`` and a heap for them. With a million keys the cache stays at
    its default, because a large one makes Kafka Streams slower there (60,000 records/s instead of 77,000).
    """
    heap = _heap(words, tuned=tuned)
    options = _options(mode, words, tuned=tuned)
    given = ", ".join(f"{name}={value}" for name, value in options.items())
    return Benchmark(
        name=name,
        title=title,
        unit="records/s",
        target_ratio=target_ratio,
        ours=Side(
            what=ours,
            settings=f"{OUR_SETTINGS}{SPARK_SETTINGS}; {batches}; {words:,} keys",
            open=lambda context: _open_ours(context, name, words, typed=typed),
        ),
        peer=Side(
            what=peer,
            settings=f"{KAFKA_SETTINGS}; Kafka Streams 4.3.1, 2 threads, heap {heap}, "
            f"{given or 'cache at its default of 10 MB'}; {words:,} keys{_why_no_cache(mode)}",
            open=lambda context: _open_peer(context, mode, words, heap, options),
        ),
    )


def run_stream(
    spark: SparkSession,
    source: Source,
    topology: Topology,
    sink: str,
    results: Results,
    batch_records: int | None = BATCH_RECORDS,
) -> Outcome:
    """Run a topology as a stream over the whole topic, in batches of a million records, or of the default size with
    None.
    """
    from millrace_streams import run_stream

    checkpoint = source.scratch / "checkpoint"
    shutil.rmtree(checkpoint, ignore_errors=True)
    read = []

    def run() -> None:
        run_stream(
            topology,
            spark,
            checkpoint=str(checkpoint),
            bootstrap_servers=source.bootstrap,
            options={"maxOffsetsPerTrigger": batch_records} if batch_records else {},
            available_now=True,
            foreach_batch={sink: results.take},
            on_batch=lambda report: read.append(report.records),
        ).awaitTermination()

    seconds, _ = timed(run)
    return Outcome(seconds, source.records, results.answer())


def run_batch(spark: SparkSession, source: Source, topology: Topology, sink: str, results: Results) -> Outcome:
    """Run a topology once over all retained records."""
    from millrace_streams import run_batch

    seconds, _ = timed(
        lambda: run_batch(topology, spark, bootstrap_servers=source.bootstrap, foreach_batch={sink: results.take})
    )
    return Outcome(seconds, source.records, results.answer())


class Results:
    """The number and sum of results.

    Either all results count, or only the newest one of each key.
    """

    def __init__(self, value: str, *, newest_of: tuple[str, ...] = ()) -> None:
        """Add up the column ``value``. ``newest_of`` are the key's columns."""
        self._value = value
        self._key = newest_of
        self._tables: list[pa.Table] = []
        self._sums: list[Any] = []

    def take(self, rows: DataFrame, _: int) -> None:
        """Take the rows of a micro-batch. Spark adds up every update. Newest rows are few."""
        if self._key:
            self._tables.append(rows.select(*self._key, self._value).toArrow())
        else:
            self._sums.append(rows.selectExpr("count(*)", f"sum({self._value})").first())

    def answer(self) -> Answer:
        """Return number and sum."""
        import polars as pl

        if not self._key:
            return [float(sum(row[place] or 0 for row in self._sums)) for place in (0, 1)]
        frame = pl.concat([pl.DataFrame(table) for table in self._tables])
        newest = frame.unique(self._key, keep="last", maintain_order=True)
        return [float(newest.height), float(newest[self._value].sum())]


def counts_per_minute(groups: Any, *, every: bool) -> Any:
    """Return the windowed count of grouped records, which most of these benchmarks use."""
    from datetime import timedelta

    from millrace_streams import tumbling

    windows = groups.windowed_by(tumbling(timedelta(minutes=1), grace=timedelta(minutes=30)))
    return windows.count(emit="every" if every else "last")


@contextlib.contextmanager
def _open_ours(context: Context, name: str, words: int, *, typed: bool) -> Iterator[Measure]:
    broker = context.millrace
    filled = broker.filled_topic(context.records, typed=typed, words=words)
    if words == KEYS:
        with broker.admin() as admin:
            if all(topic.name != WEIGHTS for topic in admin.list_topics()):
                admin.create_topic(WEIGHTS, partitions=PARTITIONS, configs=TOPIC_CONFIGS)
                _send_weights_to_millrace(broker.bootstrap)
    with measured(context, name, "ours", broker.bootstrap, filled, context.records) as measure:
        yield measure


@contextlib.contextmanager
def _open_peer(context: Context, mode: str, words: int, heap: str, options: Mapping[str, str]) -> Iterator[Measure]:
    broker, workspace = context.kafka, context.workspace
    filled = broker.filled_topic(context.records, words=words)
    if broker.count(WEIGHTS) != KEYS:
        broker.create_topic(WEIGHTS)
        _send_weights_to_kafka(broker)
    classpath = f"{jars.resolve(jars.KAFKA_STREAMS, workspace)}/*"

    folder = workspace.folder("scratch/kafka-streams", empty=True)
    command = ["java", f"-Xmx{heap}", "-cp", classpath, str(_SOURCE), broker.bootstrap, filled, WEIGHTS]
    command += [str(context.records), mode, str(folder), *(f"{name}={value}" for name, value in options.items())]
    with served(workspace, f"kafka-streams-{mode}", command) as run:

        def measure() -> Sample:
            result = run()
            seconds = result["nanoseconds"] / 1e9
            return Sample(figure=context.records / seconds, answer=[float(result["results"]), float(result["sum"])])

        yield measure


def _heap(words: int, *, tuned: bool) -> str:
    if words == KEYS_MANY:
        return _HEAP_MANY
    return _HEAP_TUNED if tuned else _HEAP


def _why_no_cache(mode: str) -> str:
    if mode == "table":
        return "; cache off, because a run is known to be over by the number of updates"
    return ""


def _options(mode: str, words: int, *, tuned: bool) -> dict[str, str]:
    """Return the options of Kafka Streams besides those that every application needs."""
    if mode in ("window_every", "table"):
        # Every update is counted, and the cache would suppress most of them.
        return {_CACHE: "0"}
    if not tuned:
        return {}
    return {name: value for name, value in TUNED.items() if words != KEYS_MANY or name != _CACHE}


def _weights() -> pa.Table:
    """Create a number for each word, with a time before all records."""
    words = data.words(KEYS)
    numbers = pa.array([number.to_bytes(8, "big") for number in range(KEYS)], pa.binary())
    times = pa.array([data.TIME_START_MS - 1] * KEYS)
    return pa.table({"key": words.cast(pa.binary()), "value": numbers, "timestamp": times})


def _send_weights_to_millrace(bootstrap: str) -> None:
    from millrace.clients import Producer

    rows = _weights()
    with Producer({"bootstrap.servers": bootstrap}) as producer:
        producer.send_table(WEIGHTS, rows.select(["key", "value"]), timestamps=rows["timestamp"].combine_chunks())


def _send_weights_to_kafka(broker: KafkaBroker) -> None:
    producer = KafkaProducer({"bootstrap.servers": broker.bootstrap, "partitioner": "murmur2_random", "log_level": 0})
    for row in _weights().to_pylist():
        producer.produce(WEIGHTS, row["value"], row["key"], timestamp=row["timestamp"])
        producer.poll(0)
    producer.flush(60)
