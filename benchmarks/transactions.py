"""A hundred concurrent transactional producers, of our clients and of Kafka's.

Each begins, sends a few records and commits, again and again. Each is a producer with its own id, in its own thread,
and all are in one process. The figure therefore includes connections, threads and the coordinator. A read_committed
consumer reads the committed records of a run.
"""

from __future__ import annotations

import contextlib
import itertools
import re
import subprocess
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer as KafkaConsumer
from confluent_kafka import TopicPartition as KafkaPartition

from benchmarks.harness import Context, Measure, Sample
from benchmarks.peers.kafka import PARTITIONS, KafkaBroker
from benchmarks.worker import Run, worker
from benchmarks.workspace import BenchmarkError
from millrace.clients import Consumer, Producer

PRODUCERS = 100
RECORDS = 4
"""The records of each transaction: two to each of two partitions."""
_TOPIC = "transactions"
_TRANSACTIONS_EACH = 50
_WARM_UP_EACH = {"ours": 5, "peer": 100}  # the JVM's compiler needs longer to reach its best
_READ_SECONDS_MAX = 60
_RUN_SECONDS_MAX = 300
_RESULT = re.compile(r"^RESULT (\d+)$", re.MULTILINE)
_SOURCE = Path(__file__).parent / "peers" / "java" / "Transactions.java"


@contextlib.contextmanager
def open_ours(context: Context) -> Iterator[Measure]:
    """Run a hundred ``Producer``s in one process for all runs, so that measured code is warm."""
    arguments = {"bootstrap": context.millrace.bootstrap}
    with (
        context.millrace.topic(_TOPIC),
        worker(context.workspace, "transactions", "benchmarks.transactions:serve", arguments) as run,
    ):

        def measure() -> Sample:
            result = run()
            return _sample(result["seconds"], result["records"])

        yield measure


@contextlib.contextmanager
def open_peer(context: Context) -> Iterator[Measure]:
    """Run a hundred ``KafkaProducer``s in one JVM, which has its own warm-up in each run.

    Topic and transactional ids are new in each run. If a topic is deleted before the last marker of a commit is
    written, the commit never ends in Kafka. The next ``initTransactions`` of its id does not end either.
    """
    broker = context.kafka
    topics = (f"{_TOPIC}-{number}" for number in itertools.count())

    def measure() -> Sample:
        topic = next(topics)
        with broker.topic(topic):
            each = (_WARM_UP_EACH["peer"], _TRANSACTIONS_EACH)
            command = broker.java(str(_SOURCE), broker.bootstrap, topic, *map(str, (PRODUCERS, PARTITIONS, *each)))
            done = subprocess.run(command, capture_output=True, text=True, timeout=_RUN_SECONDS_MAX, check=False)
            found = _RESULT.search(done.stdout)
            if done.returncode or not found:
                raise BenchmarkError(f"Transactions failed:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
            untimed = PRODUCERS * RECORDS * _WARM_UP_EACH["peer"]
            count = _read_from_kafka(broker, topic, untimed + PRODUCERS * RECORDS * _TRANSACTIONS_EACH)
            return _sample(int(found[1]) / 1e9, count - untimed)

    yield measure


def _sample(seconds: float, records: int) -> Sample:
    return Sample(figure=PRODUCERS * _TRANSACTIONS_EACH / seconds, answer=records)


def _read_from_kafka(broker: KafkaBroker, topic: str, expected: int) -> int:
    config: dict[str, Any] = {"bootstrap.servers": broker.bootstrap, "group.id": "check", "log_level": 0}
    consumer = KafkaConsumer({**config, "isolation.level": "read_committed"})
    try:
        consumer.assign([KafkaPartition(topic, number, 0) for number in range(PARTITIONS)])
        count = 0
        deadline = time.monotonic() + _READ_SECONDS_MAX
        while count < expected and time.monotonic() < deadline:
            count += sum(message.error() is None for message in consumer.consume(1000, timeout=1))
        return count
    finally:
        consumer.close()


@contextlib.contextmanager
def serve(*, bootstrap: str) -> Iterator[Run]:
    """Run the worker, with some untimed transactions before."""
    value = b"x" * 100
    with contextlib.ExitStack() as stack:
        pool = stack.enter_context(ThreadPoolExecutor(PRODUCERS))
        producers = [
            stack.enter_context(Producer({"bootstrap.servers": bootstrap, "transactional.id": f"producer-{number}"}))
            for number in range(PRODUCERS)
        ]
        reader = stack.enter_context(
            Consumer({"bootstrap.servers": bootstrap, "isolation.level": "read_committed", "direct.reads": "never"})
        )
        partitions = reader.partitions_for(_TOPIC)
        reader.assign(partitions)
        reader.seek_to_beginning(*partitions)

        def commit(number: int, transactions: int) -> None:
            producer = producers[number]
            for turn in range(transactions):
                with producer.transaction():
                    for record in range(RECORDS):
                        partition = (number + turn + record % 2) % len(partitions)
                        producer.send(_TOPIC, value, partition=partition)

        def commit_all(transactions: int) -> dict[str, float]:
            started = time.perf_counter()
            list(pool.map(commit, range(PRODUCERS), [transactions] * PRODUCERS))
            seconds = time.perf_counter() - started
            return {"seconds": seconds, "records": _read(reader, PRODUCERS * RECORDS * transactions)}

        list(pool.map(lambda producer: producer.init_transactions(), producers))
        commit_all(_WARM_UP_EACH["ours"])
        yield lambda: commit_all(_TRANSACTIONS_EACH)


def _read(reader: Consumer, expected: int) -> int:
    count = 0
    deadline = time.monotonic() + _READ_SECONDS_MAX
    while count < expected and time.monotonic() < deadline:
        count += len(reader.poll(1000))
    return count
