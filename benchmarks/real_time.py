"""Round trips of single records in Spark's real-time mode.

The query is stateless. Kafka's clients in Java send a record to one topic, and read it from another one. Spark's own
Kafka source and sink copy it between them, by way of the same broker. The next record follows when the last one was
read. A batch of the query takes five seconds, the least that Spark allows. The query and both clients are warm.
"""

from __future__ import annotations

import contextlib
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks import ours, round_trips
from benchmarks.harness import Benchmark, Context, Measure, Sample, Side
from benchmarks.kafka_clients import Broker
from benchmarks.peers import kafka
from benchmarks.spark import SPARK_SETTINGS, jar_paths, spark_session
from benchmarks.worker import Run, worker
from benchmarks.workspace import BenchmarkError

_SENT_TO = "real-time-in"
_READ_FROM = "real-time-out"
_WARM_UP = 5_000
_COUNT = 4_000
_BATCH = "5 seconds"


def benchmark(name: str, *, title: str, target_ratio: float | None = None, limit: float | None = None) -> Benchmark:
    """Make a benchmark of the median, with one of the two goals."""
    query = 'readStream.format("kafka").load().where(value) .writeStream.format("kafka").trigger(realTime="5 seconds")'
    settings = SPARK_SETTINGS + "; one partition, linger.ms=0; real-time batches of 5 s; clients in Java, acks=all"
    return Benchmark(
        name=name,
        title=title,
        unit="ms",
        higher_is_better=False,
        target_ratio=target_ratio,
        limit=limit,
        ours=Side(what=query, settings=ours.SETTINGS + settings, open=lambda context: _open(context, context.millrace)),
        peer=Side(what=query, settings=kafka.SETTINGS + settings, open=lambda context: _open(context, context.kafka)),
    )


@contextlib.contextmanager
def _open(context: Context, broker: Broker) -> Iterator[Measure]:
    name = f"real-time-{type(broker).__name__}"
    arguments = {
        "bootstrap": broker.bootstrap,
        "checkpoint": str(context.workspace.folder(f"scratch/{name}", empty=True)),
        "jar_paths": jar_paths(context.workspace),
    }
    with (
        broker.topic(_SENT_TO),
        broker.topic(_READ_FROM),
        worker(context.workspace, name, "benchmarks.real_time:serve", arguments) as check,
        round_trips.java_round_trips(
            context, broker.bootstrap, sent_to=_SENT_TO, read_from=_READ_FROM, warm_up=_WARM_UP, count=_COUNT
        ) as run,
    ):

        def measure() -> Sample:
            taken_ms = run()["p50_ns"] / 1e6
            check()
            return Sample(figure=taken_ms, answer=_COUNT)

        yield measure


@contextlib.contextmanager
def serve(*, bootstrap: str, checkpoint: str, jar_paths: list[str]) -> Iterator[Run]:
    """Run the worker with one query for all runs. Each run checks that the query goes on."""
    spark = spark_session(jar_paths)
    reader = spark.readStream.format("kafka").option("kafka.bootstrap.servers", bootstrap)
    frame = reader.option("assign", json.dumps({_SENT_TO: [0]})).option("startingOffsets", "earliest").load()
    writer = frame.where("value is not null").select("value", "partition").writeStream.format("kafka")
    writer = writer.option("kafka.bootstrap.servers", bootstrap).option("topic", _READ_FROM)
    writer = writer.option("kafka.linger.ms", "0").option("checkpointLocation", checkpoint)
    query = writer.outputMode("update").trigger(realTime=_BATCH).start()

    def run() -> dict[str, Any]:
        if not query.isActive:
            raise BenchmarkError(f"the query in real-time mode has ended: {query.exception()}")
        return {}

    try:
        yield run
    finally:
        query.stop()
        spark.stop()
        shutil.rmtree(Path(checkpoint), ignore_errors=True)
