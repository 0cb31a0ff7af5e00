"""Tests of fetchers that are stopped, whatever fails at that moment."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from millrace.config.broker import BrokerConfig
from millrace.config.topic import TopicConfig
from millrace_broker.log import LogManager
from millrace_broker.network import PeerListener, Peers
from millrace_broker.purgatory import PartitionKey
from millrace_broker.replication.runtime.replica_fetchers import SourceFetcher
from millrace_broker.replication.runtime.throttles import Throttles
from millrace_broker.runtime import Executors

from .....integration.waiting import STALL_S


class NoReplicas:
    """A fetcher without partitions."""

    throttles = Throttles(1, lambda: 0.0)

    def now_ms(self) -> int:
        return 0

    def find(self, topic: str, partition: int) -> None:
        return None

    @asynccontextmanager
    async def alone(self, keys: Iterable[PartitionKey]) -> AsyncIterator[None]:
        yield

    def fetched(self, replica: Any, size_bytes: int) -> None:
        raise AssertionError("nothing is fetched")


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
