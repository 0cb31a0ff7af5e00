"""The command ``millrace perf latency`` (Kafka's ``EndToEndLatency``)."""

from __future__ import annotations

import random
import time
from typing import TYPE_CHECKING, Annotated, Final

import typer

from millrace.cli.options import BootstrapServer, ClientConfigFile, client_config
from millrace.errors import RequestTimedOutError, UnknownServerError, UnknownTopicOrPartitionError, UsageError

if TYPE_CHECKING:
    from millrace.clients import Consumer, Producer

_POLL_MS: Final = 60_000
"""Timeout after which a record counts as lost."""
_LETTERS: Final = b"ABCDEFGHIJKLMNOPQRSTUVWXYZ"


def latency(
    topic: Annotated[
        str, typer.Option("--topic", "-t", help="Topic to use. If it is missing, it is created with one partition.")
    ],
    num_records: Annotated[int, typer.Option(min=1, help="Number of records to send, one after another.")] = 10_000,
    record_size: Annotated[int, typer.Option(min=1, metavar="BYTES", help="Size of each record.")] = 100,
    producer_acks: Annotated[str, typer.Option(metavar="ACKS", help="1 or all.")] = "all",
    bootstrap_server: BootstrapServer = None,
    client_config_file: ClientConfigFile = None,
) -> None:
    """Send records one by one, read each back, and print the average and the percentiles of the time.

    Each record is acknowledged before it is read, and read before the next record is sent.

    Examples:

      millrace perf latency --topic t --num-records 10000
    """
    from millrace.cli.options import admin_client
    from millrace.clients import Consumer, Producer
    from millrace.config.client import ConsumerConfig, ProducerConfig

    if producer_acks not in ("1", "all", "-1"):
        raise UsageError(f"--producer-acks {producer_acks}: expected 1 or all, to know when a record is written")
    options = [f"acks={producer_acks}", f"enable.idempotence={str(producer_acks != '1').lower()}"]
    producing = client_config(ProducerConfig, bootstrap_server, client_config_file, options)
    consuming = client_config(ConsumerConfig, bootstrap_server, client_config_file, ["auto.offset.reset=latest"])
    with admin_client(bootstrap_server, client_config_file) as admin:
        try:
            admin.describe_topic(topic)
        except UnknownTopicOrPartitionError:
            typer.echo(f'Topic "{topic}" does not exist. Will create topic with 1 partition.')
            admin.create_topic(topic, partitions=1)
    with Producer(producing) as producer, Consumer(consuming) as consumer:
        partitions = consumer.partitions_for(topic)
        consumer.assign(partitions)
        consumer.seek_to_end(*partitions)
        for partition in partitions:
            consumer.position(partition)
        _report(_measure(producer, consumer, topic, num_records, record_size))


def _measure(producer: Producer, consumer: Consumer, topic: str, num_records: int, record_size: int) -> list[float]:
    """Return the round trips in ms, in order."""
    from millrace.cli.output import progress

    taken_ms = []
    with progress() as bar:
        task = bar.add_task("round trips", total=num_records, rate="")
        for number in range(num_records):
            value = bytes(random.choices(_LETTERS, k=record_size))
            started = time.perf_counter()
            producer.send(topic, value).result()
            records = consumer.poll(_POLL_MS)
            taken_ms.append((time.perf_counter() - started) * 1000)
            if not records:
                raise RequestTimedOutError(f"record {number} was acknowledged, but not read within {_POLL_MS} ms")
            if len(records) != 1 or records[0].value != value:
                raise UnknownServerError(
                    f"record {number} came back changed, or with other records: stop other writers to {topic}"
                )
            if number % 1000 == 0:
                typer.echo(f"{number}\t{taken_ms[-1]}")
            bar.update(task, completed=number + 1, rate=f"{taken_ms[-1]:.2f} ms")
    return taken_ms


def _report(taken_ms: list[float]) -> None:
    from millrace.cli.perf.statistics import percentiles

    p50, p99, p999 = percentiles(sorted(taken_ms), (0.5, 0.99, 0.999))
    typer.echo(f"Avg latency: {sum(taken_ms) / len(taken_ms):.4f} ms")
    typer.echo("")
    typer.echo(f"Percentiles: 50th = {int(p50)}, 99th = {int(p99)}, 99.9th = {int(p999)}")
    # Kafka's line has whole milliseconds, but a round trip may take less than one.
    typer.echo(f"Exactly, in ms: 50th = {p50:.3f}, 99th = {p99:.3f}, 99.9th = {p999:.3f}")
