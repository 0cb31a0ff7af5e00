"""Writes with acks=all beside consumers that do not read their answers.

The writes go to three replicas, and each consumer requests megabytes. The consumers' topic is on the same brokers, and
its partitions have the same leaders. A process of its own holds the consumers' connections. Their buffers are the
smallest that the kernel gives, so that the answers stay in the brokers' memory. A broker disconnects a consumer that
reads nothing for a minute, so all consumers connect again before that.
"""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator, Sequence
from typing import Any, Final

from benchmarks import cluster_produce, machine
from benchmarks.clusters import MillraceCluster
from benchmarks.harness import Context, Measure, Sample
from benchmarks.worker import Run, worker
from benchmarks.workspace import BenchmarkError
from millrace.clients import Producer
from millrace.protocol import frames
from millrace.protocol import millrace_pb2 as pb

CONSUMERS: Final = 50
FETCH_BYTES: Final = 16 * 2**20
"""The default maximum of one response."""
_TOPIC: Final = "unread"
_VALUE_BYTES: Final = 2**19
_CONNECT_ANEW_S: Final = 45.0
_GREETING_S: Final = 60.0
_QUIET_SECONDS_MAX: Final = 30


@contextlib.contextmanager
def open_with_consumers(context: Context) -> Iterator[Measure]:
    """Measure the records/s of ``cluster_produce`` beside the consumers."""
    with _cluster(context, "millrace-cluster") as (cluster, produce):
        arguments = {"targets": _targets(cluster)}

        def measure() -> Sample:
            with worker(context.workspace, "slow-consumers", "benchmarks.slow_consumers:serve", arguments) as look:
                machine.wait_until_quiet(_QUIET_SECONDS_MAX)  # the responses are built and wait to be read
                sample = produce()
                found = look()
            if found["filled"] < len(cluster.ports):
                raise BenchmarkError(f"answers should have waited on every broker to be read: {found}")
            return sample

        yield measure


@contextlib.contextmanager
def open_alone(context: Context) -> Iterator[Measure]:
    """Measure the same on a cluster without those consumers."""
    with _cluster(context, "millrace-cluster-alone") as (_, produce):
        yield produce


@contextlib.contextmanager
def _cluster(context: Context, name: str) -> Iterator[tuple[MillraceCluster, Measure]]:
    """Start a cluster with the consumers' topic, and a warm producer for another one."""
    records = cluster_produce.records_of(context)
    with MillraceCluster(context.workspace, name) as cluster:
        cluster.create_topic(_TOPIC, cluster_produce.PARTITIONS)
        cluster.wait_until_in_sync(_TOPIC)
        with Producer(cluster.bootstrap) as producer:
            for partition in range(cluster_produce.PARTITIONS):
                for _ in range(FETCH_BYTES // _VALUE_BYTES):
                    producer.send(_TOPIC, bytes(_VALUE_BYTES), partition=partition)
        arguments = {"bootstrap": cluster.bootstrap, "records": records}
        with worker(context.workspace, f"{name}-producer", "benchmarks.cluster_produce:serve", arguments) as run:

            def produce() -> Sample:
                with cluster.topic(cluster_produce.TOPIC, cluster_produce.PARTITIONS):
                    seconds = run()["seconds"]
                    return Sample(figure=records / seconds, answer=cluster.count(cluster_produce.TOPIC))

            produce()  # brokers and producer are warm from here on
            yield cluster, produce


def _targets(cluster: MillraceCluster) -> list[tuple[int, int]]:
    """Return the port of each partition's leader, and the partition."""
    return [(cluster.ports[found.leader], number) for number, found in cluster.partitions(_TOPIC).items()]


@contextlib.contextmanager
def serve(*, targets: Sequence[tuple[int, int]]) -> Iterator[Run]:
    """Run the worker with the consumers. A run returns the number of consumers with unread data."""
    consumers = [_asked(*targets[number % len(targets)]) for number in range(CONSUMERS)]
    lock, ended = threading.Lock(), threading.Event()

    def connect_anew() -> None:
        while not ended.wait(_CONNECT_ANEW_S):
            for number in range(CONSUMERS):
                with lock:
                    consumers[number].close()
                    consumers[number] = _asked(*targets[number % len(targets)])

    def run() -> dict[str, Any]:
        with lock:
            return {"filled": sum(map(_is_filled, consumers))}

    thread = threading.Thread(target=connect_anew)
    thread.start()
    try:
        yield run
    finally:
        ended.set()
        thread.join()
        for each in consumers:
            each.close()


def _asked(port: int, partition: int) -> socket.socket:
    """Open a connection that has requested megabytes."""
    connection = socket.socket()
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    connection.settimeout(_GREETING_S)
    connection.connect(("127.0.0.1", port))
    hello = pb.HelloRequest(client_id="slow").SerializeToString()
    connection.sendall(frames.hello_request(hello))
    with connection.makefile("rb", buffering=0) as stream:
        head = frames.read_response_head(_exactly(stream, frames.RESPONSE_HEAD_BYTES), frames.HELLO_ID)
        _exactly(stream, head.body_bytes)
    request = pb.FetchRequest(replica_id=-1, max_wait_ms=600_000, min_bytes=1, max_bytes=FETCH_BYTES)
    wanted = pb.FetchRequest.PartitionFetch(
        partition=partition, partition_max_bytes=FETCH_BYTES, current_leader_epoch=-1
    )
    request.topics.add(name=_TOPIC, partitions=[wanted])
    message = request.SerializeToString()
    connection.sendall(frames.request_head(frames.API_KEYS["Fetch"], len(message)) + message)
    connection.setblocking(False)
    return connection


def _exactly(stream: Any, size: int) -> bytes:
    data = b""
    while len(data) < size:
        part = stream.read(size - len(data))
        if not part:
            raise BenchmarkError("the broker closed a consumer's connection before its fetch")
        data += part
    return data


def _is_filled(connection: socket.socket) -> bool:
    try:
        return bool(connection.recv(1, socket.MSG_PEEK))
    except BlockingIOError:
        return False
