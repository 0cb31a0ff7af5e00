"""Single commits of offsets by eight consumers.

Each consumer is in its own group and waits for every commit.
"""

from __future__ import annotations

import contextlib
import random
import threading
import time
from collections.abc import Callable, Iterator

from confluent_kafka import Consumer as KafkaConsumer
from confluent_kafka import TopicPartition as KafkaPartition

from benchmarks.harness import Context, Measure, Sample
from benchmarks.worker import Run, worker
from millrace.clients import Consumer

COMMITTERS = 8
_COMMITS_EACH = 2000
_TOPIC = "committed"

Commit = Callable[[int], None]


@contextlib.contextmanager
def open_side(context: Context, side: str) -> Iterator[Measure]:
    """Measure the commits/s of eight threads in a process of their own."""
    broker = context.millrace if side == "ours" else context.kafka
    arguments = {"bootstrap": broker.bootstrap, "side": side}
    with (
        broker.topic(_TOPIC),
        worker(context.workspace, f"commits-{side}", "benchmarks.commits:serve", arguments) as run,
    ):

        def measure() -> Sample:
            result = run()
            return Sample(figure=COMMITTERS * _COMMITS_EACH / result["seconds"], answer=result["committed"])

        yield measure


@contextlib.contextmanager
def serve(*, bootstrap: str, side: str) -> Iterator[Run]:
    """Run the worker, with one untimed run before."""
    with contextlib.ExitStack() as stack:
        make = _ours if side == "ours" else _peer
        clients = [stack.enter_context(make(bootstrap)) for _ in range(COMMITTERS)]

        def run() -> dict[str, float]:
            threads = [threading.Thread(target=_commit_all, args=[commit]) for commit, _ in clients]
            started = time.perf_counter()
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            seconds = time.perf_counter() - started
            return {"seconds": seconds, "committed": sum(committed() for _, committed in clients)}

        run()
        yield run


def _commit_all(commit: Commit) -> None:
    for offset in range(1, _COMMITS_EACH + 1):
        commit(offset)


@contextlib.contextmanager
def _ours(bootstrap: str) -> Iterator[tuple[Commit, Callable[[], int]]]:
    with Consumer({"bootstrap.servers": bootstrap, "group.id": _group(), "enable.auto.commit": False}) as consumer:
        (partition, *_) = consumer.partitions_for(_TOPIC)

        def committed() -> int:
            place = consumer.committed([partition])[partition]
            return place.offset if place else 0

        yield lambda offset: consumer.commit({partition: offset}), committed


@contextlib.contextmanager
def _peer(bootstrap: str) -> Iterator[tuple[Commit, Callable[[], int]]]:
    consumer = KafkaConsumer({"bootstrap.servers": bootstrap, "group.id": _group(), "enable.auto.commit": False})
    try:

        def commit(offset: int) -> None:
            consumer.commit(offsets=[KafkaPartition(_TOPIC, 0, offset)], asynchronous=False)

        yield commit, lambda: consumer.committed([KafkaPartition(_TOPIC, 0)], timeout=30)[0].offset
    finally:
        consumer.close()


def _group() -> str:
    return f"commits-{random.getrandbits(40)}"
