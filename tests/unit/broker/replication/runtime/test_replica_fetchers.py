"""Tests of the requests and the end of replica fetchers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast
from uuid import UUID

import pytest

from millrace.config.broker import BrokerConfig
from millrace.config.topic import TopicConfig
from millrace_broker.log import LogManager
from millrace_broker.network import PeerListener, Peers
from millrace_broker.purgatory import PartitionKey
from millrace_broker.replication.core import FetchFrom, SessionRequest
from millrace_broker.replication.runtime.hosted import HostedReplica
from millrace_broker.replication.runtime.replica_fetchers import SourceFetcher
from millrace_broker.replication.runtime.throttles import Throttles
from millrace_broker.replication.runtime.wire import ReplicaFetch, changed_fetches, fetch_request
from millrace_broker.runtime import Executors

from .....integration.waiting import STALL_S


class NoReplicas:
    """A fetcher without partitions."""

    throttles = Throttles(1, lambda: 0.0)
    broker_epoch = 1

    def now_ms(self) -> int:
        return 0

    def find(self, topic: str, partition: int) -> None:
        return None

    @asynccontextmanager
    async def alone(self, keys: Iterable[PartitionKey]) -> AsyncIterator[None]:
        yield

    def fetched(self, replica: Any, size_bytes: int) -> None:
        raise AssertionError("nothing is fetched")


class OneFetch:
    """A follower whose log is empty."""

    def question(self, now_ms: int) -> FetchFrom:
        return FetchFrom(leader_epoch=0, offset=0, last_epoch=None, log_start_offset=0)


@dataclass(eq=False)
class EmptyReplica:
    """A replica of t-0."""

    topic_id: UUID
    key: PartitionKey = ("t", 0)
    follower: OneFetch = field(default_factory=OneFetch)


class RecordingPeers(Peers):
    """A leader that keeps a session and has no records."""

    def __init__(self) -> None:
        super().__init__(PeerListener("PLAINTEXT"))
        self.asked: asyncio.Queue[list[bytes]] = asyncio.Queue()
        self.news = asyncio.Event()

    async def call(self, broker_id: int, method: str, request: Any, **_: Any) -> Any:
        self.asked.put_nowait([topic.topic_id for topic in request.topics])
        if not request.topics:
            await self.news.wait()
        return 77, []


def test_a_topic_that_is_created_again_is_named_in_the_session(tmp_path: Path) -> None:
    """Its fetch is equal to that of the deleted topic, and no request was sent between the two."""
    before, after = UUID(int=1), UUID(int=2)

    async def fetch_both() -> None:
        executors, peers = Executors(1, lambda: 0.0), RecordingPeers()
        logs = LogManager.open([tmp_path], broker_id=1, cluster_id="c", defaults=TopicConfig())
        fetcher = SourceFetcher(
            2, 0, config=BrokerConfig(), executors=executors, logs=logs, peers=peers, replicas=NoReplicas()
        )
        fetcher.follow(cast("HostedReplica", EmptyReplica(before)))
        fetcher.wake()
        async with asyncio.timeout(STALL_S):
            assert await peers.asked.get() == [before.bytes]
            assert await peers.asked.get() == []  # it waits at the leader
            fetcher.unfollow(("t", 0))
            peers.news.set()
            while fetcher._call is not None:
                await asyncio.sleep(0)
            fetcher.follow(cast("HostedReplica", EmptyReplica(after)))
            fetcher.wake()
            assert await peers.asked.get() == [after.bytes]
        await fetcher.close()
        logs.close()
        executors.close()

    asyncio.run(fetch_both())


def test_partitions_of_two_topics_of_one_name_keep_their_topic_ids() -> None:
    """One of them may be left over from a topic that was deleted while this broker was away."""
    fetch, ids = OneFetch().question(0), (UUID(int=1).bytes, UUID(int=2).bytes)
    request = SessionRequest(
        session_id=0, epoch=0, fetches={("t", number): ReplicaFetch(each, fetch) for number, each in enumerate(ids)}
    )
    changed = changed_fetches(fetch_request(request, BrokerConfig(), 1))
    assert {key: each.topic_id for key, each in changed.items()} == {("t", 0): ids[0], ("t", 1): ids[1]}


@pytest.mark.parametrize("turns", range(4))
def test_a_fetcher_that_is_woken_and_closed_at_about_the_same_time_ends(tmp_path: Path, turns: int) -> None:
    async def wake_and_close() -> None:
        executors = Executors(1, lambda: 0.0)
        logs = LogManager.open([tmp_path], broker_id=1, cluster_id="c", defaults=TopicConfig())
        fetcher = SourceFetcher(
            2,
            0,
            config=BrokerConfig(),
            executors=executors,
            logs=logs,
            peers=Peers(PeerListener("PLAINTEXT")),
            replicas=NoReplicas(),
        )
        for _ in range(10):
            await asyncio.sleep(0)  # the fetcher has no partition to ask for, and waits
        fetcher.wake()
        for _ in range(turns):
            await asyncio.sleep(0)
        await asyncio.wait_for(fetcher.close(), STALL_S)
        logs.close()
        executors.close()

    asyncio.run(wake_and_close())
