"""Ten thousand waiting fetches beside a producer of single records.

The fetches wait on an idle topic. Most of them share a few gRPC connections. Each of the others has its own connection
of frames, which answers one call at a time. They are in a process of their own, which begins them before each run and
ends after it. Each run ends with a record in every idle partition, which has to answer all fetches. A fetch that the
broker refused, lost or answered early makes the run fail.
"""

from __future__ import annotations

import asyncio
import contextlib
import statistics
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import grpc.aio

from benchmarks import machine
from benchmarks.group_members import OurLink
from benchmarks.harness import Context, Measure, Sample
from benchmarks.worker import Run, worker
from benchmarks.workspace import BenchmarkError
from millrace.clients import Admin, Producer
from millrace.protocol import millrace_pb2 as pb
from millrace.protocol.millrace_pb2_grpc import BrokerStub

FETCHES: Final = 10_000
GRPC_CONNECTIONS: Final = 10
FRAME_CONNECTIONS: Final = 1_000
MAX_WAIT_MS: Final = 1_800_000
RECORDS: Final = 10_000
BATCHES: Final = 5
"""The figure is the median of the p99s of these parts. A single p99 of one side differs by half between runs."""
_WARM_UP: Final = 5_000
_QUIET_SECONDS_MAX: Final = 60
_WAKE_SECONDS_MAX: Final = 300
_OPENED_AT_ONCE: Final = 100
_IDLE_TOPIC: Final = "idle"
_IDLE_PARTITIONS: Final = 10
_LIVE_TOPIC: Final = "beside-idle"


@contextlib.contextmanager
def open_with_fetches(context: Context) -> Iterator[Measure]:
    """Measure the producer's p99 in ms while the fetches wait."""
    arguments = {"bootstrap": context.millrace.bootstrap}
    with _producer(context) as produce:

        def measure() -> Sample:
            with worker(context.workspace, "idle-fetches", "benchmarks.idle_fetches:serve_fetches", arguments) as wake:
                machine.wait_until_quiet(_QUIET_SECONDS_MAX)
                figure = produce()["p99_ms"]
                woken = wake()
            if woken != {"waited": FETCHES, "answered": FETCHES}:
                raise BenchmarkError(f"{FETCHES} fetches should have waited and been answered in the end: {woken}")
            return Sample(figure=figure, answer=RECORDS)

        yield measure


@contextlib.contextmanager
def open_alone(context: Context) -> Iterator[Measure]:
    """Measure the same producer without the fetches."""
    with _producer(context) as produce:
        yield lambda: Sample(figure=produce()["p99_ms"], answer=RECORDS)


def _producer(context: Context) -> contextlib.AbstractContextManager[Run]:
    arguments = {"bootstrap": context.millrace.bootstrap}
    return worker(context.workspace, "producer-beside-idle", "benchmarks.idle_fetches:serve_producer", arguments)


@contextlib.contextmanager
def serve_producer(*, bootstrap: str) -> Iterator[Run]:
    """Run the worker that sends a record, waits for its acknowledgement, and sends the next."""
    with Admin(bootstrap) as admin:
        _create_topic(admin, _LIVE_TOPIC, 1)
    value = b"x" * 100
    with Producer(bootstrap) as producer:

        def acknowledged(count: int) -> list[float]:
            taken = []
            for _ in range(count):
                started = time.perf_counter()
                producer.send(_LIVE_TOPIC, value).result()
                taken.append((time.perf_counter() - started) * 1000)
            return sorted(taken)

        def run() -> dict[str, Any]:
            acknowledged(_WARM_UP)
            batches = [acknowledged(RECORDS) for _ in range(BATCHES)]
            return {"p99_ms": statistics.median(taken[int(RECORDS * 0.99)] for taken in batches)}

        yield run


@contextlib.contextmanager
def serve_fetches(*, bootstrap: str) -> Iterator[Run]:
    """Run the worker whose fetches wait.

    A run returns the number of waiting fetches, and of those that a record then answered.
    """
    with Admin(bootstrap) as admin:
        _create_topic(admin, _IDLE_TOPIC, _IDLE_PARTITIONS)
    with asyncio.Runner() as runner, contextlib.ExitStack() as opened:
        connections = runner.run(_connect(bootstrap))
        opened.callback(lambda: runner.run(connections.close()))
        fetches = runner.run(_begin_fetches(connections))

        def run() -> dict[str, Any]:
            waited = sum(not each.done() for each in fetches)
            with Producer(bootstrap) as producer:
                for partition in range(_IDLE_PARTITIONS):
                    producer.send(_IDLE_TOPIC, b"x", partition=partition)
            return {"waited": waited, "answered": runner.run(_answered(fetches))}

        yield run


def _create_topic(admin: Admin, name: str, partitions: int) -> None:
    if all(topic.name != name for topic in admin.list_topics()):
        admin.create_topic(name, partitions=partitions)


@dataclass(frozen=True)
class _Connections:
    """The connections of all fetches."""

    channels: list[grpc.aio.Channel]
    links: list[OurLink]

    async def close(self) -> None:
        """Close the connections. Waiting fetches fail."""
        for channel in self.channels:
            await channel.close(None)
        for link in self.links:
            await link.close()


async def _connect(bootstrap: str) -> _Connections:
    connections = _Connections([], [])
    host, _, port = bootstrap.rpartition(":")
    for _ in range(FRAME_CONNECTIONS):
        connections.links.append(OurLink(*await asyncio.open_connection(host, int(port))))
        endpoints = (await connections.links[-1].greet()).endpoints
    (grpc_port,) = (each.port for each in endpoints if each.protocol == "grpc")
    options = [("grpc.use_local_subchannel_pool", 1)]  # or all channels would share one connection
    for _ in range(GRPC_CONNECTIONS):
        connections.channels.append(grpc.aio.insecure_channel(f"{host}:{grpc_port}", options))
    return connections


async def _begin_fetches(connections: _Connections) -> list[asyncio.Task[bool]]:
    """Send all fetches, and return when the broker has read them from the connections."""
    stubs: list[Any] = [BrokerStub(channel) for channel in connections.channels]
    ends = await _ends(stubs[0])
    begun: list[asyncio.Task[bool]] = []
    for number in range(FETCHES):
        partition = number % _IDLE_PARTITIONS
        request = pb.FetchRequest(replica_id=-1, max_wait_ms=MAX_WAIT_MS, min_bytes=1, max_bytes=2**20)
        wanted = pb.FetchRequest.PartitionFetch(
            partition=partition, fetch_offset=ends[partition], partition_max_bytes=2**20, current_leader_epoch=-1
        )
        request.topics.add(name=_IDLE_TOPIC, partitions=[wanted])
        if number < FRAME_CONNECTIONS:
            fetch = _by_frames(connections.links[number], request)
        else:
            fetch = _by_grpc(stubs[number % GRPC_CONNECTIONS], request)
        begun.append(asyncio.create_task(fetch))
        if number % _OPENED_AT_ONCE == 0:
            await stubs[number // _OPENED_AT_ONCE % GRPC_CONNECTIONS].ApiVersions(pb.ApiVersionsRequest())
    await asyncio.gather(*(stub.ApiVersions(pb.ApiVersionsRequest()) for stub in stubs))
    return begun


async def _ends(stub: Any) -> dict[int, int]:
    latest = [
        pb.ListOffsetsRequest.PartitionTime(partition=number, timestamp=-1, current_leader_epoch=-1)
        for number in range(_IDLE_PARTITIONS)
    ]
    request = pb.ListOffsetsRequest(replica_id=-1)
    request.topics.add(name=_IDLE_TOPIC, partitions=latest)
    answer = await stub.ListOffsets(request)
    return {each.partition: each.offset for each in answer.topics[0].partitions}


async def _by_frames(link: OurLink, request: pb.FetchRequest) -> bool:
    error, data = await link.call("Fetch", request)
    return not error and _has_records(pb.FetchResponse.FromString(data))


async def _by_grpc(stub: Any, request: pb.FetchRequest) -> bool:
    return _has_records(await stub.Fetch(request))


def _has_records(answer: pb.FetchResponse) -> bool:
    return bool(answer.topics[0].partitions[0].records)


async def _answered(fetches: list[asyncio.Task[bool]]) -> int:
    async with asyncio.timeout(_WAKE_SECONDS_MAX):
        return sum(await asyncio.gather(*fetches))
