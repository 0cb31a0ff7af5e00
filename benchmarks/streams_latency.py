"""Latency of a topology with few records.

The micro-batches are measured beside Kafka Streams' records. A hundred records a second come one by one, and each gives
an update of its key's count. Our figure is the time of a whole micro-batch (Spark's ``triggerExecution``, from the
request for new records to the commit). The next record may have to wait so long. Kafka Streams has no micro-batches.
Its figure is the time from producing a record to its update, without its cache. Both are warm. The first minute and a
half does not count, because the JVM compiles most of that time.
"""

from __future__ import annotations

import contextlib
import itertools
import re
import shutil
import subprocess
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.harness import Benchmark, Context, Measure, Sample, Side
from benchmarks.micro_batches import durations_ms, wait_for
from benchmarks.ours import PARTITIONS, TOPIC_CONFIGS
from benchmarks.ours import SETTINGS as OUR_SETTINGS
from benchmarks.peers import jars
from benchmarks.peers.kafka import SETTINGS as KAFKA_SETTINGS
from benchmarks.spark import LOW_LATENCY_SETTINGS, SPARK_SETTINGS, jar_paths, spark_session
from benchmarks.trickle import LATE_SECONDS_MAX, RECORDS_PER_SECOND, send_for
from benchmarks.worker import Run, worker
from benchmarks.workspace import BenchmarkError

if TYPE_CHECKING:
    from millrace_streams import Topology

_KEYS = 100
_SECONDS = 30
_WARM_UP_SECONDS = 90
_SOURCE = Path(__file__).parent / "peers" / "java" / "StreamsLatency.java"
_RUN_SECONDS_MAX = 300
_RESULT = re.compile(r"^RESULT (\d+)$", re.MULTILINE)


def benchmark(name: str, *, title: str, limit: float, low_latency: bool) -> Benchmark:
    """Make a benchmark of the median of that time.

    With ``low_latency`` it uses the profile of that name and one partition.
    """
    profile = f"; one partition{LOW_LATENCY_SETTINGS}" if low_latency else f"; {PARTITIONS} partitions"
    return Benchmark(
        name=name,
        title=title,
        unit="ms",
        higher_is_better=False,
        limit=limit,
        ours=Side(
            what="run_stream: group_by_key().count().to_stream(), a micro-batch from its trigger to its commit",
            settings=OUR_SETTINGS + SPARK_SETTINGS + profile,
            open=lambda context: _open_ours(context, low_latency=low_latency),
        ),
        peer=Side(
            what=".groupByKey().count().toStream().foreach(), from producing a record to its update",
            settings=f"{KAFKA_SETTINGS}; Kafka Streams 4.3.1, 1 thread, cache off, consumer and producer at defaults",
            open=_open_peer,
        ),
    )


@contextlib.contextmanager
def _open_ours(context: Context, *, low_latency: bool) -> Iterator[Measure]:
    topic = f"trickle-{uuid.uuid4().hex[:8]}"
    with context.millrace.admin() as admin:
        admin.create_topic(topic, partitions=1 if low_latency else PARTITIONS, configs=TOPIC_CONFIGS)
        arguments = {
            "bootstrap": context.millrace.bootstrap,
            "topic": topic,
            "checkpoint": str(context.workspace.folder("scratch/streams-latency", empty=True)),
            "jar_paths": jar_paths(context.workspace),
            "low_latency": low_latency,
        }
        try:
            with worker(context.workspace, topic, "benchmarks.streams_latency:serve", arguments) as run:
                yield lambda: Sample(figure=run()["p50_ms"], answer=RECORDS_PER_SECOND * _SECONDS)
        finally:
            admin.delete_topic(topic)


@contextlib.contextmanager
def _open_peer(context: Context) -> Iterator[Measure]:
    broker = context.kafka
    classpath = f"{jars.resolve(jars.KAFKA_STREAMS, context.workspace)}/*"

    def measure() -> Sample:
        topic = f"trickle-{uuid.uuid4().hex[:8]}"
        folder = context.workspace.folder("scratch/kafka-streams", empty=True)
        with broker.topic(topic):
            command = ["java", "-Xmx512m", "-cp", classpath, str(_SOURCE), broker.bootstrap, topic, str(folder)]
            command += [str(RECORDS_PER_SECOND), str(_WARM_UP_SECONDS), str(_SECONDS)]
            done = subprocess.run(command, capture_output=True, text=True, timeout=_RUN_SECONDS_MAX, check=False)
        found = _RESULT.search(done.stdout)
        if done.returncode or not found:
            raise BenchmarkError(f"StreamsLatency failed:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
        return Sample(figure=int(found[1]) / 1e6, answer=RECORDS_PER_SECOND * _SECONDS)

    yield measure


@contextlib.contextmanager
def serve(*, bootstrap: str, topic: str, checkpoint: str, jar_paths: list[str], low_latency: bool) -> Iterator[Run]:
    """Run the worker with one query for all runs, and with records for a while in each run."""
    from millrace.clients import Producer
    from millrace_streams import run_stream

    conf = {"spark.sql.streaming.numRecentProgressUpdates": "10000"}
    spark = spark_session(jar_paths, conf, low_latency=low_latency)
    read: list[int] = []
    query = run_stream(
        _topology(topic),
        spark,
        checkpoint=checkpoint,
        bootstrap_servers=bootstrap,
        foreach_batch={"updates": lambda rows, _: rows.collect()},
        on_batch=lambda report: read.append(report.records),
    )
    try:
        with Producer(bootstrap) as producer:
            keys = itertools.cycle([f"{number}".encode() for number in range(_KEYS)])

            def trickle(seconds: int) -> list[float]:
                first = len(read)
                send_for(seconds, lambda value: producer.send(topic, value, key=next(keys)))
                enough = seconds * RECORDS_PER_SECOND
                wait_for(query, lambda: sum(read[first:]) >= enough, seconds_max=LATE_SECONDS_MAX)
                # Spark may not have reported the last one yet.
                return sorted(durations_ms(query, first, len(read) - 1))

            trickle(_WARM_UP_SECONDS)

            def run() -> dict[str, Any]:
                taken = trickle(_SECONDS)
                return {"p50_ms": taken[len(taken) // 2]}

            yield run
    finally:
        query.stop()
        spark.stop()
        shutil.rmtree(checkpoint, ignore_errors=True)


def _topology(topic: str) -> Topology:
    from millrace_streams import StreamsBuilder

    builder = StreamsBuilder()
    builder.stream(topic, key="string", value="bytes").group_by_key().count(emit="every").to_stream().to("updates")
    return builder.build()
