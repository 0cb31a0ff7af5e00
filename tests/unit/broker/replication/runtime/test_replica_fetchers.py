"""A fetcher ends when it is told to, whatever happens to it in that moment."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from millrace.config.broker import BrokerConfig
from millrace_broker.broker import Broker
from millrace_broker.replication.runtime.replica_fetchers import SourceFetcher

from .....integration.waiting import STALL_S


@pytest.mark.parametrize("turns", range(4))
def test_a_fetcher_that_is_woken_and_closed_at_about_the_same_time_ends(tmp_path: Path, turns: int) -> None:
    async def wake_and_close() -> None:
        broker = Broker(BrokerConfig.load({"log.dirs": str(tmp_path)}))
        fetcher = SourceFetcher(broker, broker.replicas, 2, 0)
        for _ in range(10):
            await asyncio.sleep(0)  # it has nothing to ask, and waits
        fetcher.wake()
        for _ in range(turns):
            await asyncio.sleep(0)
        await asyncio.wait_for(fetcher.close(), STALL_S)

    asyncio.run(wake_and_close())
