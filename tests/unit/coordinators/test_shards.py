"""Tests of the partitions from which a coordinator loads its state.

They use real logs, without a broker.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from millrace.coordinator_records import TRANSACTIONS_TOPIC
from millrace.errors import CoordinatorLoadInProgressError, CoordinatorNotAvailableError, NotCoordinatorError
from millrace_broker.coordinators import OFFSETS_TOPIC, LoadedBatch, Shards, StateLog, StateRecord
from millrace_broker.coordinators import shards as shards_module
from millrace_broker.decisions import LeaderAndIsrRequest
from millrace_broker.metadata import TopicInfo

from ...integration.waiting import STALL_S
from .parts import Parts, opened_parts


class Keys:
    """A shard that has the keys of its partition. It is not loaded while ``gate`` is closed."""

    gate = threading.Event()

    def __init__(self, log: StateLog) -> None:
        self.log = log
        self.seen: list[bytes] = []
        self.is_active = False

    def replay(self, batch: LoadedBatch) -> None:
        assert self.gate.wait(STALL_S)
        self.seen += [record.key for record in batch.records]

    def activate(self) -> None:
        self.is_active = True

    def deactivate(self) -> None:
        self.is_active = False


@asynccontextmanager
async def opened(directory: Path) -> AsyncIterator[tuple[Parts, Shards[Keys]]]:
    """Create logs with a topic that has one record in partition 1, and its shards, not yet loaded."""
    async with opened_parts(directory) as parts:
        shards = parts.shards.shards(OFFSETS_TOPIC, Keys)
        try:
            await parts.topics.ensure(OFFSETS_TOPIC)
            log = parts.shards.open_log(OFFSETS_TOPIC, 1)
            await log.load(lambda batch: None)
            await log.append([StateRecord(b"k", b"v")])
            yield parts, shards
        finally:
            Keys.gate.set()
            await shards.close()


def test_a_caller_that_can_wait_is_given_what_is_read_meanwhile(tmp_path: Path) -> None:
    async def scenario() -> None:
        Keys.gate.clear()
        async with opened(tmp_path) as (_, shards):
            with pytest.raises(CoordinatorLoadInProgressError):
                shards.shard(1)
            waiting = [asyncio.create_task(shards.wait_for_shard(1)) for _ in range(2)]
            assert (await shards.wait_for_shard(0)).seen == []  # other shards do not wait
            Keys.gate.set()
            first, second = await asyncio.gather(*waiting)
            assert first is second is shards.shard(1)
            assert first.seen == [b"k"]
            assert first.is_active

    asyncio.run(scenario())


def test_a_caller_that_waits_for_long_is_asked_to_retry_and_the_load_continues(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shards_module, "_LOADING_WAIT_S", 0.01)

    async def scenario() -> None:
        Keys.gate.clear()
        async with opened(tmp_path) as (_, shards):
            for _ in range(2):
                with pytest.raises(CoordinatorLoadInProgressError, match="is being loaded: retry"):
                    await shards.wait_for_shard(1)
            Keys.gate.set()
            assert (await shards.wait_until_loaded(1)).seen == [b"k"]

    asyncio.run(scenario())


def test_no_call_waits_for_a_closed_shard(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with opened(tmp_path) as (_, shards):
            await shards.close()
            with pytest.raises(CoordinatorNotAvailableError):
                await shards.wait_for_shard(1)

    asyncio.run(scenario())


def test_a_caller_that_comes_before_the_leader_election_finds_the_coordinator_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> None:
        async with opened(tmp_path) as (parts, _):
            shards = parts.shards.shards(TRANSACTIONS_TOPIC, Keys)
            shards.start()
            become, is_named, is_elected = parts.replicas.become, asyncio.Event(), asyncio.Event()

            async def become_late(request: LeaderAndIsrRequest, marked: Mapping[str, TopicInfo]) -> Any:
                is_named.set()
                await is_elected.wait()
                return await become(request, marked)

            monkeypatch.setattr(parts.replicas, "become", become_late)
            creation = asyncio.create_task(shards.ensure_topic())
            await asyncio.wait_for(is_named.wait(), STALL_S)
            with pytest.raises(NotCoordinatorError, match="find the coordinator again"):
                shards.shard(0)
            is_elected.set()
            await creation
            assert (await shards.wait_for_shard(0)).is_active

    asyncio.run(scenario())
