"""Failover after a broker is killed with SIGKILL.

The figures are the times until writes are acknowledged again, and until all partitions have a leader. A figure begins
with the kill. It includes the time until a side takes the broker for dead: an expired session, missed heartbeats or a
refused connection.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator

from confluent_kafka import Producer as KafkaProducer

from benchmarks.clusters import Cluster, MillraceCluster
from benchmarks.harness import Context, Measure, Sample
from benchmarks.peers.kafka_cluster import KafkaCluster
from benchmarks.workspace import BenchmarkError
from millrace.clients import Producer

TOPIC = "written"
MANY_PARTITIONS = 2_000
_EVERY_S = 0.01
_ACKNOWLEDGED_SECONDS_MAX = 120

Send = Callable[[Callable[[], None]], None]
"""A function that sends a record, and calls back when the record is acknowledged."""


# --- leaders ----------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def open_ours(cluster: MillraceCluster) -> Iterator[Measure]:
    """Kill the leader, and measure until the next acknowledged write of a running producer."""
    with cluster:
        cluster.create_topic(TOPIC, 1)
        with Producer({"bootstrap.servers": cluster.bootstrap, "linger.ms": 0}) as producer:

            def send(acknowledged: Callable[[], None]) -> None:
                def told(_: object, error: Exception | None) -> None:
                    if error is None:
                        acknowledged()

                producer.send(TOPIC, b"x" * 100, on_delivery=told)

            yield _leader_failover(cluster, send)


@contextlib.contextmanager
def open_peer(cluster: KafkaCluster) -> Iterator[Measure]:
    """Measure the same with Kafka's brokers and librdkafka."""
    with cluster:
        cluster.create_topic(TOPIC, 1)
        options = {"bootstrap.servers": cluster.bootstrap, "linger.ms": 0, "enable.idempotence": True, "log_level": 0}
        producer = KafkaProducer(options)

        def send(acknowledged: Callable[[], None]) -> None:
            producer.produce(TOPIC, b"x" * 100, on_delivery=lambda error, _: None if error else acknowledged())
            producer.poll(0)

        yield _leader_failover(cluster, send)
        producer.flush(60)


def _leader_failover(cluster: Cluster, send: Send) -> Measure:
    def measure() -> Sample:
        cluster.wait_until_in_sync(TOPIC)
        _seconds_until_acknowledged(send)  # the producer knows the leader and is connected
        leader = cluster.partitions(TOPIC)[0].leader
        cluster.kill(leader)
        seconds = _seconds_until_acknowledged(send)
        cluster.launch(leader)
        return Sample(figure=seconds)

    return measure


def _seconds_until_acknowledged(send: Send) -> float:
    """Send a record every 10 ms, until one that was sent from now on is acknowledged."""
    acknowledged = threading.Event()
    started = time.perf_counter()
    while not acknowledged.wait(_EVERY_S):
        if time.perf_counter() - started > _ACKNOWLEDGED_SECONDS_MAX:
            raise BenchmarkError(f"no write was acknowledged within {_ACKNOWLEDGED_SECONDS_MAX} s of the kill")
        send(acknowledged.set)
    return time.perf_counter() - started


# --- controllers ------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def open_controller(cluster: Cluster, partitions: int) -> Iterator[Measure]:
    """Kill the controller, and measure until all partitions of a large topic have a live leader."""
    with cluster:
        cluster.create_topic(TOPIC, partitions)

        def measure() -> Sample:
            cluster.wait_until_in_sync(TOPIC)
            return Sample(figure=_controller_failover(cluster, TOPIC))

        yield measure


def _controller_failover(cluster: Cluster, topic: str) -> float:
    controller = cluster.controller()
    started = time.perf_counter()
    cluster.kill(controller)

    def is_led() -> bool:
        found = cluster.partitions(topic).values()
        return bool(found) and all(each.leader not in (-1, controller) for each in found)

    cluster.wait_until("leaders", is_led)
    seconds = time.perf_counter() - started
    cluster.launch(controller)
    return seconds


def partitions_of(context: Context) -> int:
    """Return 2,000, or fewer in a quick look at a small data set."""
    return min(MANY_PARTITIONS, max(context.records // 1000, 10))
