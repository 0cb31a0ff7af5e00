"""A backfill by Spark beside producers.

The figure is the latency of acknowledgements with and without the backfill. The producer sends at a steady rate, and
does not wait for a record before it sends the next one. So a slow answer delays only its own record. The backfill reads
the whole topic with ``maxBytesPerSecond``, for longer than the measurement of the producer.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator
from functools import partial
from typing import Any, Final

from benchmarks.harness import Context, Measure, Sample
from benchmarks.peers import jars
from benchmarks.worker import Run, worker
from benchmarks.workspace import BenchmarkError

BYTES_PER_SECOND: Final = 32 * 2**20
RECORDS_PER_SECOND: Final = 500
SECONDS: Final = 20
_WARM_UP_SECONDS: Final = 5
_UNDER_WAY_SECONDS: Final = 4
_TOPIC: Final = "live"


@contextlib.contextmanager
def open_with_backfill(context: Context) -> Iterator[Measure]:
    """Measure the producer's p99 in ms while a backfill runs."""
    source = {
        "bootstrap": context.millrace.bootstrap,
        "topic": context.millrace.filled_topic(context.records, typed=False),
    }
    paths = [str(path) for path in jars.paths(jars.DELTA, context.workspace)]
    arguments = {"source": source, "jar_paths": paths}
    with (
        worker(context.workspace, "backfill", "benchmarks.backfill:serve_backfill", arguments) as read,
        _producer(context) as produce,
    ):

        def measure() -> Sample:
            outcomes: list[dict[str, Any]] = []
            backfill = threading.Thread(target=lambda: outcomes.append(read()))
            backfill.start()
            time.sleep(_UNDER_WAY_SECONDS)
            figure = produce()["p99_ms"]
            if not backfill.is_alive():
                raise BenchmarkError(f"the backfill ended before the producer did ({outcomes}): take more records")
            backfill.join()
            [outcome] = outcomes
            if outcome["rows"] != context.records:
                raise BenchmarkError(f"the backfill read {outcome['rows']} of {context.records} records")
            return Sample(figure=figure, answer=RECORDS_PER_SECOND * SECONDS)

        yield measure


@contextlib.contextmanager
def open_alone(context: Context) -> Iterator[Measure]:
    """Measure the same producer without a backfill."""
    with _producer(context) as produce:
        yield lambda: Sample(figure=produce()["p99_ms"], answer=RECORDS_PER_SECOND * SECONDS)


def _producer(context: Context) -> contextlib.AbstractContextManager[Run]:
    arguments = {"bootstrap": context.millrace.bootstrap}
    return worker(context.workspace, "live-producer", "benchmarks.backfill:serve_producer", arguments)


@contextlib.contextmanager
def serve_backfill(*, source: dict[str, str], jar_paths: list[str]) -> Iterator[Run]:
    """Run the worker that reads, with a session that has read once."""
    from benchmarks.spark import spark_session

    spark = spark_session(jar_paths)

    def run(**options: str) -> dict[str, Any]:
        reader = spark.read.format("millrace").option("kafka.bootstrap.servers", source["bootstrap"])
        return {"rows": reader.option("subscribe", source["topic"]).options(columns="value", **options).load().count()}

    try:
        run()
        yield lambda: run(maxBytesPerSecond=str(BYTES_PER_SECOND))
    finally:
        spark.stop()


@contextlib.contextmanager
def serve_producer(*, bootstrap: str) -> Iterator[Run]:
    """Run the worker that sends at a steady rate."""
    from millrace.clients import Admin, Producer

    with Admin(bootstrap) as admin:
        if all(topic.name != _TOPIC for topic in admin.list_topics()):
            admin.create_topic(_TOPIC, partitions=1)
    with Producer(bootstrap) as producer:

        def acknowledged(seconds: int) -> list[float]:
            taken: list[float] = []
            value = b"x" * 100

            def note(due: float, _: object) -> None:
                taken.append((time.perf_counter() - due) * 1000)

            first = time.perf_counter()
            for number in range(seconds * RECORDS_PER_SECOND):
                due = first + number / RECORDS_PER_SECOND
                time.sleep(max(0.0, due - time.perf_counter()))
                # The time counts from the planned send time, because a live producer also experiences a late send.
                producer.send(_TOPIC, value).add_done_callback(partial(note, due))
            producer.flush()
            return sorted(taken)

        acknowledged(_WARM_UP_SECONDS)

        def run() -> dict[str, Any]:
            taken = acknowledged(SECONDS)
            return {"p50_ms": taken[len(taken) // 2], "p99_ms": taken[int(len(taken) * 0.99)]}

        yield run
