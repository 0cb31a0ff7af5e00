"""The command ``millrace perf produce`` (Kafka's ``kafka-producer-perf-test``)."""

from __future__ import annotations

import gc
import random
import threading
import time
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from millrace.cli.options import BootstrapServer, ClientConfigFile, client_config, name_value
from millrace.cli.perf.metrics import metrics_text, producer_metrics
from millrace.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from millrace.cli.perf.statistics import ProduceStatistics
    from millrace.clients import Producer
    from millrace.config.client import ProducerConfig

_REPORT_MS: Final = 5_000
_TABLE_BYTES: Final = 2**20
"""Approximate size of one table."""
_PICKED: Final = 10_000
"""Number of randomly selected payloads, which are then sent in turn."""
_STEP_MAX: Final = 1000
"""Maximum number of records between clock reads."""
_THROTTLE_STEP_S: Final = 0.001
"""Minimum wait for which the thread sleeps."""


class PerfMode(StrEnum):
    """Ways to send records."""

    RECORDS = "records"
    TABLES = "tables"


def produce(
    topic: Annotated[str, typer.Option("--topic", "-t", help="Topic to send to. It must be opaque.")],
    num_records: Annotated[int, typer.Option(min=1, help="Number of records to send.")],
    record_size: Annotated[
        int | None, typer.Option(min=1, metavar="BYTES", help="Size of each record, which consists of random letters.")
    ] = None,
    payload_file: Annotated[
        Path | None, typer.Option(metavar="FILE", help="File with records. The command picks from them at random.")
    ] = None,
    payload_delimiter: Annotated[str, typer.Option(help="Separator of the records in the file.")] = "\\n",
    throughput: Annotated[float, typer.Option(metavar="N", help="Limit of records a second. -1 means no limit.")] = -1,
    warmup_records: Annotated[
        int, typer.Option(min=0, metavar="N", help="Also print the figures without the first N records.")
    ] = 0,
    mode: Annotated[
        PerfMode, typer.Option(help="records: one by one (send). tables: many at once (send_table).")
    ] = PerfMode.RECORDS,
    producer_props: Annotated[
        list[str] | None, typer.Option("--producer-props", "-o", metavar="NAME=VALUE", help="Option; repeatable.")
    ] = None,
    transactional_id: Annotated[
        str | None, typer.Option(metavar="ID", help="Send in transactions with this id.")
    ] = None,
    transaction_duration_ms: Annotated[
        int | None,
        typer.Option(min=1, metavar="MS", help="Commit after this time. The default with a transactional id is 3000."),
    ] = None,
    print_metrics: Annotated[
        bool, typer.Option("--print-metrics", help="Print the producer's metrics at the end.")
    ] = False,
    bootstrap_server: BootstrapServer = None,
    client_config_file: ClientConfigFile = None,
) -> None:
    """Send records as fast as possible, and print records/s and latencies every 5 s and at the end.

    A latency is the time from the send of a record to its acknowledgement. With many records only a sample is measured.
    In tables mode it is the latency of a table. A producer is slow at its start: with --warmup-records a second line
    has the figures without the start.

    Examples:

      millrace perf produce --topic t --num-records 1000000 --record-size 100

      millrace perf produce --topic t --num-records 50000000 --record-size 100 --mode tables -o compression.type=lz4

      millrace perf produce --topic t --num-records 10000 --record-size 100 --throughput 1000 --warmup-records 1000
    """
    from millrace.clients import Producer
    from millrace.config.client import ProducerConfig

    if (record_size is None) == (payload_file is None):
        raise UsageError("give either --record-size or --payload-file")
    if warmup_records >= num_records:
        raise UsageError(f"--warmup-records {warmup_records}: give fewer than the {num_records} records of the run")
    payloads = _payloads(record_size, payload_file, payload_delimiter)
    if transaction_duration_ms is not None and transactional_id is None:
        transactional_id = f"performance-producer-{random.getrandbits(64):016x}"
    props = [*(producer_props or ()), *([f"transactional.id={transactional_id}"] if transactional_id else ())]
    options = ["=".join(name_value(text, "--producer-props")) for text in props]
    config = client_config(ProducerConfig, bootstrap_server, client_config_file, options)
    with Producer(config) as producer:
        if producer.describe_topic(topic).schema is not None:
            raise UsageError(f"topic {topic} is typed: this command sends bytes, which need an opaque topic")
        transaction_s = _duration_s(producer, transaction_duration_ms)
        run = _Run(producer, topic, num_records, warmup_records, payloads, throughput, transaction_s)
        started_s = time.perf_counter()
        run.go(mode)
        if print_metrics:
            typer.echo(_metrics(producer, ProducerConfig.of(config), topic, time.perf_counter() - started_s))


def _metrics(producer: Producer, config: ProducerConfig, topic: str, elapsed_s: float) -> str:
    return metrics_text(
        producer_metrics(producer.statistics(), config.client_id, topic, elapsed_s, config.buffer_memory)
    )


def _duration_s(producer: Producer, transaction_duration_ms: int | None) -> float | None:
    if not producer.is_transactional:
        return None
    producer.init_transactions()
    return (3_000 if transaction_duration_ms is None else transaction_duration_ms) / 1000


def _payloads(record_size: int | None, file: Path | None, delimiter: str) -> list[bytes]:
    if file is None:
        return [bytes(random.choices(b"ABCDEFGHIJKLMNOPQRSTUVWXYZ", k=record_size or 1)) for _ in range(1000)]
    try:
        text = file.read_bytes()
    except OSError as error:
        raise UsageError(f"cannot read {file}: {error.strerror}") from error
    payloads = [line for line in text.split(delimiter.encode().decode("unicode_escape").encode()) if line]
    if not payloads:
        raise UsageError(f"{file} has no records")
    return payloads


class _Run:
    """One measurement."""

    def __init__(
        self,
        producer: Producer,
        topic: str,
        num_records: int,
        warmup_records: int,
        payloads: Sequence[bytes],
        throughput: float,
        transaction_s: float | None,
    ) -> None:
        self._producer = producer
        self._topic = topic
        self._num_records = num_records
        self._warmup_records = warmup_records
        self._steady: ProduceStatistics | None = None
        self._payloads = payloads
        self._throughput = throughput
        self._transaction_s = transaction_s
        self._transaction_until = 0.0
        self._lock = threading.Lock()
        self._failures: list[Exception] = []
        # Freeze loaded objects, because garbage collection of them stops all threads for 40 ms, twice a second at
        # full speed.
        gc.collect()
        gc.freeze()

    def go(self, mode: PerfMode) -> None:
        """Send everything and print the lines; raises the first error of a record."""
        from millrace.cli.output import progress
        from millrace.cli.perf.statistics import ProduceStatistics, Throttle

        started_s = time.perf_counter()
        statistics = ProduceStatistics(self._num_records, started_s * 1000)
        throttle = Throttle(self._throughput, started_s)
        send = self._send_tables if mode is PerfMode.TABLES else self._send_records
        with progress() as bar:
            task = bar.add_task(f"sending to {self._topic}", total=self._num_records, rate="")
            self._begin()
            for sent in send(statistics):
                wait_s = throttle.wait_s(sent, time.perf_counter())
                if wait_s >= _THROTTLE_STEP_S:
                    time.sleep(wait_s)
                if self._steady is None and 0 < self._warmup_records <= sent:
                    self._steady = ProduceStatistics(self._num_records, time.perf_counter() * 1000)
                now_ms = time.perf_counter() * 1000
                if statistics.interval_ms(now_ms) >= _REPORT_MS:
                    with self._lock:
                        typer.echo(statistics.interval_line(now_ms))
                rate = f"{statistics.count / max(now_ms / 1000 - started_s, 1e-6):,.0f}/s"
                bar.update(task, completed=statistics.count, rate=rate)
                if self._failures:
                    raise self._failures[0]
                self._commit_if_due()
            if self._transaction_s is not None:
                self._producer.commit_transaction()
            self._producer.flush()
        if self._failures:
            raise self._failures[0]
        ended_ms = time.perf_counter() * 1000
        typer.echo(statistics.total_line(ended_ms))
        if self._steady is not None:
            typer.echo(self._steady.total_line(ended_ms, "steady state records"))

    # --- ways of sending: each yields, now and then, how many records it has sent ------------------------------------

    def _send_records(self, statistics: ProduceStatistics) -> Iterator[int]:
        send, topic, sampling = self._producer.send, self._topic, statistics.sampling
        step = max(min(_STEP_MAX, int(self._throughput / 100)), 1) if self._throughput > 0 else _STEP_MAX
        picked = random.choices(self._payloads, k=_PICKED)
        size_bytes = sum(map(len, picked)) / _PICKED
        for first in range(0, self._num_records, step):
            end = min(first + step, self._num_records)
            for number in range(first, end):
                value = picked[number % _PICKED]
                if number % sampling:
                    send(topic, value)
                else:
                    stands_for = min(sampling, self._num_records - number)
                    told = self._measuring(statistics, stands_for, int(stands_for * size_bytes))
                    send(topic, value, on_delivery=told)
            yield end

    def _send_tables(self, statistics: ProduceStatistics) -> Iterator[int]:
        import pyarrow as pa

        picked = random.choices(self._payloads, k=_PICKED)
        size_bytes = sum(map(len, picked)) / _PICKED
        step = max(int(_TABLE_BYTES / size_bytes), 1)
        if self._throughput > 0:
            step = max(min(step, int(self._throughput / 10)), 1)
        table = pa.table({"value": pa.array([picked[row % _PICKED] for row in range(step)], pa.binary())})
        for first in range(0, self._num_records, step):
            count = min(step, self._num_records - first)
            told = self._measuring(statistics, count, int(count * size_bytes))
            future = self._producer.send_table(self._topic, table.slice(0, count))
            future.add_done_callback(lambda done, told=told: told(None, done.exception()))  # type: ignore[misc]
            yield first + count

    def _measuring(self, statistics: ProduceStatistics, count: int, size_bytes: int) -> Callable[[Any, Any], None]:
        """Return the callback for ``count`` records that are sent now."""
        sent_s = time.perf_counter()
        counting = (statistics,) if self._steady is None else (statistics, self._steady)

        def told(metadata: object, error: Exception | None) -> None:
            latency_ms = (time.perf_counter() - sent_s) * 1000
            with self._lock:
                if error is not None:
                    self._failures.append(error)
                    return
                for each in counting:
                    each.acknowledged(count, size_bytes)
                    each.measured(latency_ms)

        return told

    # --- transactions --------------------------------------------------------------------------------------------

    def _begin(self) -> None:
        if self._transaction_s is not None:
            self._producer.begin_transaction()
            self._transaction_until = time.perf_counter() + self._transaction_s

    def _commit_if_due(self) -> None:
        if self._transaction_s is not None and time.perf_counter() >= self._transaction_until:
            self._producer.commit_transaction()
            self._begin()
