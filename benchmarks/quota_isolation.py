"""Isolation of a client from another one without remaining quota.

The figures are the rate of the client that has used up its quota, and the latency of the other one. The limited client
always has more records than it may send. Its rate is measured over ten seconds in the middle, by the records that are
acknowledged to it. The other client is the steady producer of ``backfill``.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator
from typing import Any, Final

from benchmarks import backfill
from benchmarks.harness import Context, Measure, Sample
from benchmarks.worker import Run, worker
from benchmarks.workspace import BenchmarkError

BYTES_PER_SECOND: Final = 8 * 2**20
CLIENT_ID: Final = "limited"
SECONDS: Final = 10.0
TOLERANCE: Final = 0.05
_WARM_UP_SECONDS: Final = 3.0
_UNDER_WAY_SECONDS: Final = 2
_VALUE_BYTES: Final = 16 * 1024
_TOPIC: Final = "limited"
_OTHER: Final = "benchmarks.backfill:serve_producer"


@contextlib.contextmanager
def open_beside_limited(context: Context) -> Iterator[Measure]:
    """Measure the other client's p99 in ms beside the limited client, whose rate has to be its quota."""
    arguments = {"bootstrap": context.millrace.bootstrap}
    with (
        worker(context.workspace, "limited-producer", "benchmarks.quota_isolation:serve_limited", arguments) as limited,
        worker(context.workspace, "other-producer", _OTHER, arguments) as other,
    ):

        def measure() -> Sample:
            outcomes: list[dict[str, Any]] = []
            sending = threading.Thread(target=lambda: outcomes.append(limited()))
            sending.start()
            time.sleep(_UNDER_WAY_SECONDS)
            figure = other()["p99_ms"]
            sending.join()
            if not outcomes:
                raise BenchmarkError("the limited client failed: see limited-producer.log")
            share = outcomes[0]["bytes_per_second"] / BYTES_PER_SECOND
            if abs(share - 1) > TOLERANCE:
                raise BenchmarkError(f"the limited client sent {share:.1%} of its quota of {BYTES_PER_SECOND} bytes/s")
            return Sample(figure=figure)

        yield measure


@contextlib.contextmanager
def open_alone(context: Context) -> Iterator[Measure]:
    """Measure the same client without the limited one."""
    arguments = {"bootstrap": context.millrace.bootstrap}
    with worker(context.workspace, "other-producer-alone", _OTHER, arguments) as other:
        yield lambda: Sample(figure=other()["p99_ms"])


@contextlib.contextmanager
def serve_limited(*, bootstrap: str) -> Iterator[Run]:
    """Run the worker that sends as much as its quota allows, for longer than the other client's measurement."""
    from millrace.clients import Admin, Producer
    from millrace.quotas import PRODUCER_BYTE_RATE, QuotaEntity

    with Admin(bootstrap) as admin:
        if all(topic.name != _TOPIC for topic in admin.list_topics()):
            admin.create_topic(_TOPIC, partitions=1)
        admin.alter_client_quotas(QuotaEntity.of([("client-id", CLIENT_ID)]), {PRODUCER_BYTE_RATE: BYTES_PER_SECOND})
    value = b"x" * _VALUE_BYTES

    def run() -> dict[str, Any]:
        seconds = backfill.SECONDS + 2 * _UNDER_WAY_SECONDS
        acknowledged = [0]

        def note(_: object) -> None:
            acknowledged[0] += _VALUE_BYTES

        with Producer({"bootstrap.servers": bootstrap, "client.id": CLIENT_ID}) as producer:
            start = time.monotonic()
            marks: list[tuple[float, int]] = []
            while (elapsed := time.monotonic() - start) < seconds:
                if len(marks) < 2 and elapsed >= _WARM_UP_SECONDS + SECONDS * len(marks):
                    marks.append((elapsed, acknowledged[0]))
                producer.send(_TOPIC, value).add_done_callback(note)
        (began, before), (ended, after) = marks
        return {"bytes_per_second": (after - before) / (ended - began)}

    run()
    yield run
