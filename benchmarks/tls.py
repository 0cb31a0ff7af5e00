"""Share of the throughput that TLS leaves.

The share is measured at our side and at Kafka's. Each measurement is one run without TLS and one with it, at two
listeners of one broker. The figure is the quotient, so that a ratio above 1 means that TLS costs us less than it costs
Kafka. The aim for our own figure is 0.65 or more. Both sides have the same kind of certificate, and the versions and
suites that both choose by default (TLS 1.3).
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from benchmarks import consume, ours, produce
from benchmarks.harness import Benchmark, Context, Durability, Measure, Sample, Side
from benchmarks.ours import MillraceBroker
from benchmarks.peers import kafka
from benchmarks.peers.kafka import KafkaBroker
from benchmarks.workspace import Workspace
from millrace.security.authority import Authority

_DAYS: Final = 30
_OVER_TCP: Final = {"direct.reads": "never"}


def produce_benchmark(name: str) -> Benchmark:
    """Make the benchmark of producers at their defaults (``produce_table``)."""
    return Benchmark(
        name=name,
        title="Throughput that TLS leaves to producers at their defaults",
        unit="of the throughput without TLS",
        target_ratio=1,
        ours=Side(
            what="Producer().send_table with security.protocol=SSL, divided by the same without",
            settings=ours.SETTINGS + "; producer defaults, acks=all",
            open=_open_our_producers,
        ),
        peer=Side(
            what="ProducerPerformance with security.protocol=SSL, divided by the same without",
            settings=kafka.SETTINGS + "; producer defaults, acks=all",
            open=_open_peer_producers,
        ),
    )


def consume_benchmark(name: str) -> Benchmark:
    """Make the benchmark of consumers over the network (``consume_frames``)."""
    return Benchmark(
        name=name,
        title="Throughput that TLS leaves to consumers",
        unit="of the throughput without TLS",
        target_ratio=1,
        durability=Durability.NOTHING_WRITTEN,
        ours=Side(
            what="Consumer.poll_table with security.protocol=SSL, divided by the same without",
            settings=ours.SETTINGS + "; consumer: direct.reads=never, otherwise its defaults",
            open=_open_our_consumers,
        ),
        peer=Side(
            what="KafkaConsumer.poll in Java with security.protocol=SSL, divided by the same without",
            settings=kafka.SETTINGS + "; consumer: the options of ConsumerPerformance, otherwise its defaults",
            open=_open_peer_consumers,
        ),
    )


def _stores(workspace: Workspace, side: str) -> tuple[Path, dict[str, str]]:
    """Write a certificate of a new authority. Return the broker's key store, and the options of clients."""
    folder = workspace.folder(f"{side}-tls-stores", empty=True)
    authority = Authority.new()
    keystore, truststore = folder / "broker.pem", folder / "ca.pem"
    keystore.touch(mode=0o600)
    keystore.write_bytes(authority.issue("CN=broker", ("localhost", "127.0.0.1"), _DAYS))
    truststore.write_bytes(authority.certificate_pem())
    trusting = {"ssl.truststore.type": "PEM", "ssl.truststore.location": str(truststore)}
    return keystore, {"security.protocol": "SSL", **trusting}


def _share(plain: Measure, encrypted: Measure) -> Measure:
    """Measure without TLS and then with it."""

    def measure() -> Sample:
        without, with_tls = plain(), encrypted()
        return Sample(figure=with_tls.figure / without.figure, answer=[without.answer, with_tls.answer])

    return measure


@contextlib.contextmanager
def _our_broker(context: Context) -> Iterator[tuple[MillraceBroker, dict[str, str]]]:
    keystore, options = _stores(context.workspace, "millrace")
    with MillraceBroker(context.workspace, "millrace-tls", empty=True, keystore=keystore) as broker:
        yield broker, options | {"bootstrap.servers": broker.tls_bootstrap}


@contextlib.contextmanager
def _kafka_broker(context: Context) -> Iterator[tuple[KafkaBroker, dict[str, str]]]:
    keystore, options = _stores(context.workspace, "kafka")
    with KafkaBroker(context.workspace, "kafka-tls", keystore=keystore) as broker:
        yield broker, options


@contextlib.contextmanager
def _open_our_producers(context: Context) -> Iterator[Measure]:
    with (
        _our_broker(context) as (broker, options),
        produce.open_ours(context, broker=broker) as plain,
        produce.open_ours(context, broker=broker, name="producer-tls", **options) as encrypted,
    ):
        yield _share(plain, encrypted)


@contextlib.contextmanager
def _open_peer_producers(context: Context) -> Iterator[Measure]:
    with (
        _kafka_broker(context) as (broker, options),
        produce.open_peer(context, json_payloads=False, broker=broker) as plain,
        produce.open_peer(
            context, json_payloads=False, broker=broker, bootstrap=broker.tls_bootstrap, options=options
        ) as encrypted,
    ):
        yield _share(plain, encrypted)


@contextlib.contextmanager
def _open_our_consumers(context: Context) -> Iterator[Measure]:
    with (
        _our_broker(context) as (broker, options),
        consume.open_ours(context, _OVER_TCP, broker=broker) as plain,
        consume.open_ours(context, _OVER_TCP | options, broker=broker, name="consumer-tls") as encrypted,
    ):
        yield _share(plain, encrypted)


@contextlib.contextmanager
def _open_peer_consumers(context: Context) -> Iterator[Measure]:
    with _kafka_broker(context) as (broker, options):
        topic = broker.filled_topic(context.records)
        with (
            consume.open_peer(context, broker, topic) as plain,
            consume.open_peer(context, broker, topic, options=options, bootstrap=broker.tls_bootstrap) as encrypted,
        ):
            yield _share(plain, encrypted)
