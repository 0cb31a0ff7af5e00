"""A thousand members of one group, as bare requests to a coordinator.

The row excludes the cost of clients. Every member is a task with its own connection: in Kafka's protocol to Kafka's
broker, in frames to ours. In each run all members rejoin with changed metadata, so that the group rebalances. A run
ends when all members have the assignment of one generation.
"""

from __future__ import annotations

import asyncio
import contextlib
import struct
import time
from collections.abc import Iterator
from typing import Any, Protocol

from confluent_kafka import Consumer as KafkaConsumer
from confluent_kafka import TopicPartition as KafkaPartition

from benchmarks.harness import Context, Measure, Sample
from benchmarks.worker import Run, worker
from millrace.clients import TopicPartition
from millrace.clients.membership.protocol import encode_assignment, encode_subscription
from millrace.protocol import frames
from millrace.protocol import millrace_pb2 as pb

MEMBERS = 1000
_SESSION_MS = 60_000
_REBALANCE_MS = 120_000
_GROUP = "members"
_ROUND_SECONDS_MAX = 150  # longer than the rebalance timeout, because a lost member would delay the rebalance by it
_TOPIC = "records"
_ASSIGNMENT = encode_assignment(TopicPartition(_TOPIC, number) for number in range(20))
_UNKNOWN_MEMBER, _ID_REQUIRED = 25, 79
_HEARTBEAT_S = 0.2


class Link(Protocol):
    """One member's connection to a coordinator. All calls return an error number first."""

    async def join(self, member_id: str, metadata: bytes) -> tuple[int, int, str, list[str]]:
        """Return error, generation and member id, and for the leader the members' ids."""
        ...

    async def sync(self, generation: int, member_id: str, members: list[str]) -> tuple[int, int]:
        """Return error and size of the assignment."""
        ...

    async def heartbeat(self, generation: int, member_id: str) -> int:
        """Return the error."""
        ...


class Group:
    """All members, and the generation of each."""

    def __init__(self, links: list[Link]) -> None:
        self._links = links
        self._ids = [""] * len(links)
        self._generations = [-1] * len(links)
        self._round = 0
        self._formed = asyncio.Event()

    async def rebalance(self) -> float:
        """Let all members rejoin, and return the seconds until all are in one generation. Raises ``TimeoutError``."""
        self._round += 1
        self._formed = asyncio.Event()
        self._generations = [-1] * len(self._links)
        started = time.perf_counter()
        async with asyncio.timeout(_ROUND_SECONDS_MAX):
            await asyncio.gather(*(self._member(number) for number in range(len(self._links))))
        return time.perf_counter() - started

    async def _member(self, number: int) -> None:
        link = self._links[number]
        # Kafka parses subscriptions, and never answers a group if it cannot.
        metadata = encode_subscription([_TOPIC], [], -1, user_data=b"round %d" % self._round)
        while not self._formed.is_set():
            error, generation, member_id, members = await link.join(self._ids[number], metadata)
            if error == _UNKNOWN_MEMBER:
                self._ids[number] = ""
                continue
            self._ids[number] = member_id
            if error:
                await asyncio.sleep(0.0 if error == _ID_REQUIRED else _HEARTBEAT_S)
                continue
            error, _ = await link.sync(generation, member_id, members)
            if error:
                continue
            self._generations[number] = generation
            if len(set(self._generations)) == 1:
                self._formed.set()
            await self._live(link, number, generation)

    async def _live(self, link: Link, number: int, generation: int) -> None:
        """Stay in the generation until all members are in it, or it ends."""
        while not self._formed.is_set():
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._formed.wait(), _HEARTBEAT_S)
                return
            if await link.heartbeat(generation, self._ids[number]):
                self._generations[number] = -1
                return


class OurLink:
    """A group member's own connection to our broker, with frames."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    async def close(self) -> None:
        """Close the connection. A waiting call fails."""
        self._writer.close()
        with contextlib.suppress(ConnectionError):
            await self._writer.wait_closed()

    async def greet(self) -> pb.HelloResponse:
        """Send the first frame of a connection, and return the broker's description of itself."""
        _, answer = await self.call("", pb.HelloRequest(client_id="member"))
        return pb.HelloResponse.FromString(answer)

    async def call(self, name: str, request: Any) -> tuple[int, bytes]:
        """Return the error, or 0, and the message of the answer."""
        message = request.SerializeToString()
        self._writer.write(frames.request_head(frames.API_KEYS.get(name, frames.HELLO), len(message)) + message)
        await self._writer.drain()
        head = frames.read_response_head(await self._reader.readexactly(frames.RESPONSE_HEAD_BYTES))
        return head.error, await self._reader.readexactly(head.body_bytes)

    async def join(self, member_id: str, metadata: bytes) -> tuple[int, int, str, list[str]]:
        request = pb.JoinGroupRequest(
            group_id=_GROUP,
            session_timeout_ms=_SESSION_MS,
            rebalance_timeout_ms=_REBALANCE_MS,
            member_id=member_id,
            protocol_type="consumer",
            protocols=[pb.JoinGroupRequest.Protocol(name="range", metadata=metadata)],
        )
        error, data = await self.call("JoinGroup", request)
        if error:
            return error, -1, member_id, []
        answer = pb.JoinGroupResponse.FromString(data)
        return (
            answer.error.code,
            answer.generation_id,
            answer.member_id,
            [member.member_id for member in answer.members],
        )

    async def sync(self, generation: int, member_id: str, members: list[str]) -> tuple[int, int]:
        assignments = [pb.SyncGroupRequest.Assignment(member_id=each, assignment=_ASSIGNMENT) for each in members]
        request = pb.SyncGroupRequest(
            group_id=_GROUP,
            generation_id=generation,
            member_id=member_id,
            protocol_type="consumer",
            protocol_name="range",
            assignments=assignments,
        )
        error, data = await self.call("SyncGroup", request)
        return error, 0 if error else len(pb.SyncGroupResponse.FromString(data).assignment)

    async def heartbeat(self, generation: int, member_id: str) -> int:
        request = pb.HeartbeatRequest(group_id=_GROUP, generation_id=generation, member_id=member_id)
        error, _ = await self.call("Heartbeat", request)
        return error


class KafkaLink:
    """A group member's own connection to Kafka's broker.

    The member uses JoinGroup v5, SyncGroup v3 and Heartbeat v3.
    """

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    async def _call(self, key: int, version: int, body: bytes) -> bytes:
        message = struct.pack(">hhi", key, version, 0) + _text("member") + body
        self._writer.write(struct.pack(">i", len(message)) + message)
        await self._writer.drain()
        (size,) = struct.unpack(">i", await self._reader.readexactly(4))
        return (await self._reader.readexactly(size))[8:]  # after the correlation id and the throttle time

    async def join(self, member_id: str, metadata: bytes) -> tuple[int, int, str, list[str]]:
        body = _text(_GROUP) + struct.pack(">ii", _SESSION_MS, _REBALANCE_MS) + _text(member_id) + b"\xff\xff"
        body += _text("consumer") + struct.pack(">i", 1) + _text("range") + _bytes(metadata)
        answer = await self._call(11, 5, body)
        error, generation = struct.unpack_from(">hi", answer)
        _, position = _read_text(answer, 6)
        _, position = _read_text(answer, position)
        found, position = _read_text(answer, position)
        (count,) = struct.unpack_from(">i", answer, position)
        position += 4
        members = []
        for _ in range(count):
            name, position = _read_text(answer, position)
            _, position = _read_text(answer, position)
            (length,) = struct.unpack_from(">i", answer, position)
            position += 4 + length
            members.append(name)
        return error, generation, found, members

    async def sync(self, generation: int, member_id: str, members: list[str]) -> tuple[int, int]:
        body = _text(_GROUP) + struct.pack(">i", generation) + _text(member_id) + b"\xff\xff"
        body += struct.pack(">i", len(members)) + b"".join(_text(each) + _bytes(_ASSIGNMENT) for each in members)
        answer = await self._call(14, 3, body)
        error, length = struct.unpack_from(">hi", answer)
        return error, length

    async def heartbeat(self, generation: int, member_id: str) -> int:
        body = _text(_GROUP) + struct.pack(">i", generation) + _text(member_id) + b"\xff\xff"
        error: int = struct.unpack_from(">h", await self._call(12, 3, body))[0]
        return error


def _text(text: str) -> bytes:
    data = text.encode()
    return struct.pack(">h", len(data)) + data


def _bytes(data: bytes) -> bytes:
    return struct.pack(">i", len(data)) + data


def _read_text(data: bytes, position: int) -> tuple[str, int]:
    (length,) = struct.unpack_from(">h", data, position)
    end = position + 2 + max(length, 0)
    return data[position + 2 : end].decode(), end


@contextlib.contextmanager
def open_side(context: Context, side: str) -> Iterator[Measure]:
    """Run the members in a process of their own. A run is one rebalance of all members."""
    if side == "ours":
        bootstrap = context.millrace.bootstrap
    else:
        bootstrap = context.kafka.bootstrap
        _make_offsets_topic(bootstrap)
    with worker(
        context.workspace, f"members-{side}", "benchmarks.group_members:serve", {"address": bootstrap, "side": side}
    ) as run:
        yield lambda: Sample(figure=run()["seconds"], answer=MEMBERS)


def _make_offsets_topic(bootstrap: str) -> None:
    """Let Kafka create the offsets topic, which it does at the first request for a coordinator."""
    consumer = KafkaConsumer({"bootstrap.servers": bootstrap, "group.id": _GROUP, "log_level": 0})
    try:
        consumer.committed([KafkaPartition("none", 0)], timeout=60)
    finally:
        consumer.close()


@contextlib.contextmanager
def serve(*, address: str, side: str) -> Iterator[Run]:
    """Run the worker, with two untimed rebalances before."""
    loop = asyncio.new_event_loop()
    links = loop.run_until_complete(_links(address, side))
    group = Group(links)
    for _ in range(2):
        loop.run_until_complete(group.rebalance())
    yield lambda: {"seconds": loop.run_until_complete(group.rebalance())}


async def _links(address: str, side: str) -> list[Link]:
    host, _, port = address.rpartition(":")
    if side == "peer":
        return [KafkaLink(*await asyncio.open_connection(host, int(port), limit=2**24)) for _ in range(MEMBERS)]
    links = [OurLink(*await asyncio.open_connection(host, int(port), limit=2**24)) for _ in range(MEMBERS)]
    for link in links:
        await link.greet()
    await links[0].call("FindCoordinator", pb.FindCoordinatorRequest(key_type=pb.GROUP, keys=[_GROUP]))
    return list(links)
