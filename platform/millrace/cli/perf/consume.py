"""The command ``millrace perf consume`` (Kafka's ``kafka-consumer-perf-test``)."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator, Sequence
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Final

import typer

from millrace.cli.options import BootstrapServer, ClientConfigFile, client_config, name_value
from millrace.cli.perf.consume_statistics import DETAILED_HEADER, HEADER, ConsumeStatistics
from millrace.cli.perf.metrics import consumer_metrics, metrics_text

if TYPE_CHECKING:
    import pyarrow as pa

    from millrace.clients import Consumer, ConsumerRecords, TopicPartition

_POLL_MS: Final = 100


class ConsumeMode(StrEnum):
    """Ways to read records."""

    RECORDS = "records"
    TABLES = "tables"


Mode = Annotated[ConsumeMode, typer.Option(help="records: one by one (poll). tables: as Arrow tables (poll_table).")]
Direct = Annotated[
    bool,
    typer.Option(help="Read the segment files, if they are on this machine. --no-direct reads over the network only."),
]
Timeout = Annotated[int, typer.Option(min=1, metavar="MS", help="Time without records after which the command ends.")]
ReportingInterval = Annotated[
    int, typer.Option(min=1, metavar="MS", help="Time between two lines of --show-detailed-stats.")
]
Detailed = Annotated[bool, typer.Option("--show-detailed-stats", help="Print a line for each interval.")]
FetchSize = Annotated[
    int | None, typer.Option(min=1, metavar="BYTES", help="Largest number of bytes of a partition in a fetch.")
]
FromLatest = Annotated[
    bool, typer.Option("--from-latest", help="Start at the end if the group has no committed offsets.")
]


def consume(
    topic: Annotated[str, typer.Option("--topic", "-t", help="Topic to read.")],
    messages: Annotated[int, typer.Option("--messages", min=1, help="Number of records to read.")],
    mode: Mode = ConsumeMode.RECORDS,
    direct: Direct = True,
    group: Annotated[str | None, typer.Option(help="Consumer group. The default is a new group.")] = None,
    from_latest: FromLatest = False,
    fetch_size: FetchSize = None,
    timeout: Timeout = 10_000,
    reporting_interval: ReportingInterval = 5_000,
    show_detailed_stats: Detailed = False,
    hide_header: Annotated[bool, typer.Option("--hide-header", help="Do not print the header.")] = False,
    print_metrics: Annotated[
        bool, typer.Option("--print-metrics", help="Print the consumer's metrics at the end.")
    ] = False,
    consumer_props: Annotated[
        list[str] | None, typer.Option("--consumer-props", "-o", metavar="NAME=VALUE", help="Option; repeatable.")
    ] = None,
    bootstrap_server: BootstrapServer = None,
    client_config_file: ClientConfigFile = None,
) -> None:
    """Read records as fast as possible, and print their number and rate. Times are in UTC.

    MB are the bytes of keys and values, or in tables mode of the Arrow buffers of the columns.

    Examples:

      millrace perf consume --topic t --messages 1000000

      millrace perf consume --topic t --messages 50000000 --mode tables --no-direct
    """
    from millrace.clients import Consumer
    from millrace.config.client import ConsumerConfig

    props = [name_value(text, "--consumer-props") for text in consumer_props or ()]
    config = client_config(
        ConsumerConfig,
        bootstrap_server,
        client_config_file,
        [f"{name}={value}" for name, value in props],
        group_id=group or f"perf-consumer-{random.getrandbits(32)}",
        auto_offset_reset="latest" if from_latest else "earliest",
        direct_reads="auto" if direct else "never",
        **({} if fetch_size is None else {"max_partition_fetch_bytes": fetch_size}),
    )
    if not hide_header:
        typer.echo(DETAILED_HEADER if show_detailed_stats else HEADER)
    with Consumer(config) as consumer:
        run = _Run(consumer, messages, timeout / 1000, reporting_interval / 1000 if show_detailed_stats else None)
        statistics = run.go(topic, mode)
        if not show_detailed_stats:
            typer.echo(statistics.total_line(time.time()))
        if statistics.records < messages:
            typer.echo(
                f"WARNING: Exiting before consuming the expected number of messages: timeout ({timeout} ms) exceeded. "
                "You can use the --timeout option to increase the timeout.",
                err=True,
            )
        if print_metrics:
            elapsed_s = time.time() - statistics.started_s
            typer.echo(
                metrics_text(consumer_metrics(consumer.statistics(), ConsumerConfig.of(config).client_id, elapsed_s))
            )


class _Run:
    """One measurement."""

    def __init__(self, consumer: Consumer, messages: int, timeout_s: float, report_s: float | None) -> None:
        self._consumer = consumer
        self._messages = messages
        self._timeout_s = timeout_s
        self._report_s = report_s

    def go(self, topic: str, mode: ConsumeMode) -> ConsumeStatistics:
        """Read until the requested number of records, or until the timeout without records."""
        from millrace.cli.output import progress
        from millrace.clients import RebalanceListener

        statistics = ConsumeStatistics(started_s=time.time())

        class Rebalances(RebalanceListener):
            """Listener that measures the time from a revocation to the next assignment."""

            since = time.time()

            def on_partitions_revoked(self, partitions: Sequence[TopicPartition]) -> None:
                self.since = time.time()

            def on_partitions_assigned(self, partitions: Sequence[TopicPartition]) -> None:
                statistics.rebalance_s += time.time() - self.since

        self._consumer.subscribe([topic], Rebalances())
        reported_at = heard_at = statistics.started_s
        batches = self._tables() if mode is ConsumeMode.TABLES else self._records()
        with progress() as bar:
            task = bar.add_task(f"reading {topic}", total=self._messages, rate="")
            for count, size_bytes in batches:
                statistics.consumed(count, size_bytes)
                now = time.time()
                if count:
                    heard_at = now
                if self._report_s is not None and now - reported_at >= self._report_s:
                    typer.echo(statistics.interval_line(now))
                    reported_at = now
                rate = f"{statistics.records / max(now - statistics.started_s, 1e-6):,.0f}/s"
                bar.update(task, completed=statistics.records, rate=rate)
                if statistics.records >= self._messages or now - heard_at > self._timeout_s:
                    break
        return statistics

    def _records(self) -> Iterator[tuple[int, int]]:
        while True:
            records = self._consumer.poll(_POLL_MS)
            yield len(records), _size_of(records)

    def _tables(self) -> Iterator[tuple[int, int]]:
        while True:
            table: pa.Table = self._consumer.poll_table(_POLL_MS)
            yield table.num_rows, table.nbytes


def _size_of(records: ConsumerRecords) -> int:
    """Return the size of keys and values in bytes; keys and values of typed topics count their columns."""
    return sum(
        (len(record.key) if record.key is not None else 0) + (len(record.value) if record.value is not None else 0)
        for record in records
    )
