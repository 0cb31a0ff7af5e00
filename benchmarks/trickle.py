"""Latency of rows in ``foreachBatch`` for a stream with few records.

A hundred records a second come one by one, from a producer in the process of the query. Each has its send time. The
latency ends when ``foreachBatch`` has collected the rows of its batch. Both sides' queries run without a trigger
interval, and are warm. The first half minute does not count, and neither do the first seconds of each run. While the
other side was measured, Spark has ended the query's idle Python workers after a minute. Their restart takes a second,
once.
"""

from __future__ import annotations

import contextlib
import shutil
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from benchmarks import ours
from benchmarks.harness import Benchmark, Context, Measure, Sample, Side
from benchmarks.peers import kafka
from benchmarks.spark import LOW_LATENCY_SETTINGS, SPARK_SETTINGS, jar_paths, spark_session
from benchmarks.worker import Run, worker
from benchmarks.workspace import BenchmarkError

_TOPIC = "trickle"
RECORDS_PER_SECOND = 100
_SECONDS = 30
_WARM_UP_SECONDS = 30
_LEAD_SECONDS = 5
LATE_SECONDS_MAX = 60

Send = Callable[[bytes], Any]


def benchmark(name: str, *, title: str, percentile: int, target_ratio: float, recommended: bool) -> Benchmark:
    """Make a benchmark of a percentile, 50 or 99, of that time.

    ``recommended`` gives both sides' sessions the settings of the profile low-latency, which work for any source.
    """
    extra = LOW_LATENCY_SETTINGS if recommended else ""
    stream = ".option(subscribe) .load().writeStream.foreachBatch(collect)"
    return Benchmark(
        name=name,
        title=title,
        unit="ms",
        higher_is_better=False,
        target_ratio=target_ratio,
        ours=Side(
            what=f'readStream.format("millrace"){stream}',
            settings=ours.SETTINGS + SPARK_SETTINGS + extra,
            open=lambda context: _open(context, "ours", percentile, low_latency=recommended),
        ),
        peer=Side(
            what=f'readStream.format("kafka"){stream}',
            settings=kafka.SETTINGS + SPARK_SETTINGS + extra,
            open=lambda context: _open(context, "peer", percentile, low_latency=recommended),
        ),
    )


@contextlib.contextmanager
def _open(context: Context, side: str, percentile: int, *, low_latency: bool) -> Iterator[Measure]:
    broker = context.millrace if side == "ours" else context.kafka
    topic = f"{_TOPIC}-{uuid.uuid4().hex[:8]}"
    with broker.topic(topic):
        arguments = {
            "side": side,
            "bootstrap": broker.bootstrap,
            "topic": topic,
            "checkpoint": str(context.workspace.folder(f"scratch/trickle-{side}", empty=True)),
            "jar_paths": jar_paths(context.workspace),
            "low_latency": low_latency,
        }
        with worker(context.workspace, f"trickle-{side}", "benchmarks.trickle:serve", arguments) as run:
            yield lambda: Sample(figure=run()[f"p{percentile}_ms"], answer=RECORDS_PER_SECOND * _SECONDS)


@contextlib.contextmanager
def serve(
    *, side: str, bootstrap: str, topic: str, checkpoint: str, jar_paths: list[str], low_latency: bool
) -> Iterator[Run]:
    """Run the worker with one query for all runs, and with records for a while in each run."""
    spark = spark_session(jar_paths, low_latency=low_latency)
    seen: list[float] = []

    def see(batch: Any, _: int) -> None:
        rows = batch.select("value").collect()
        now = time.time()
        seen.extend((now - float(row.value)) * 1000 for row in rows)

    reader = spark.readStream.format("millrace" if side == "ours" else "kafka")
    frame = reader.option("kafka.bootstrap.servers", bootstrap).option("subscribe", topic).load()
    query = frame.writeStream.foreachBatch(see).option("checkpointLocation", checkpoint).start()
    try:
        with _sender(side, bootstrap, topic) as send:

            def trickle(seconds: int) -> list[float]:
                seen.clear()
                send_for(seconds, send)
                _wait_for(seen, seconds * RECORDS_PER_SECOND, query)
                return sorted(seen)

            _until_it_reads(send, seen, query)
            trickle(_WARM_UP_SECONDS)

            def run() -> dict[str, Any]:
                trickle(_LEAD_SECONDS)
                taken = trickle(_SECONDS)
                return {"p50_ms": taken[len(taken) // 2], "p99_ms": taken[len(taken) * 99 // 100]}

            yield run
    finally:
        query.stop()
        spark.stop()
        shutil.rmtree(Path(checkpoint), ignore_errors=True)


@contextlib.contextmanager
def _sender(side: str, bootstrap: str, topic: str) -> Iterator[Send]:
    if side == "ours":
        from millrace.clients import Producer

        with Producer(bootstrap) as producer:
            yield lambda value: producer.send(topic, value)
        return
    from confluent_kafka import Producer as KafkaProducer

    peer = KafkaProducer({"bootstrap.servers": bootstrap, "linger.ms": 0, "log_level": 0})
    stopped = threading.Event()

    def poll() -> None:
        while not stopped.is_set():
            peer.poll(0.1)

    polling = threading.Thread(target=poll)
    polling.start()
    try:
        yield lambda value: peer.produce(topic, value)
    finally:
        stopped.set()
        polling.join()
        peer.flush(10)


def send_for(seconds: int, send: Send) -> None:
    """Send records at an even pace, however long each send takes."""
    started = time.time()
    for number in range(seconds * RECORDS_PER_SECOND):
        time.sleep(max(0.0, started + number / RECORDS_PER_SECOND - time.time()))
        send(repr(time.time()).encode())


def _until_it_reads(send: Send, seen: list[float], query: Any) -> None:
    """Wait until the query reads.

    A stream begins at the latest records, so records before its first request do not count.
    """
    deadline = time.monotonic() + LATE_SECONDS_MAX
    while not seen:
        _check_runs(query, deadline)
        send(repr(time.time()).encode())
        time.sleep(0.1)
    # The last records are still in flight.
    while (before := len(seen)) == 0 or not _is_still(seen, before):
        _check_runs(query, deadline)


def _is_still(seen: list[float], before: int) -> bool:
    time.sleep(2)
    return len(seen) == before


def _wait_for(seen: list[float], count: int, query: Any) -> None:
    deadline = time.monotonic() + LATE_SECONDS_MAX
    while len(seen) < count:
        _check_runs(query, deadline)
        time.sleep(0.05)
    if len(seen) != count:
        raise BenchmarkError(f"{len(seen)} rows were seen after {count} records were sent")


def _check_runs(query: Any, deadline: float) -> None:
    if not query.isActive or time.monotonic() > deadline:
        raise BenchmarkError(f"the query does not go on: {query.exception()}")
