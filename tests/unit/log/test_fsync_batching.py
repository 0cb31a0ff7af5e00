from __future__ import annotations

import asyncio
import threading

import pytest

from millrace.errors import NotLeaderError, StorageError
from millrace_broker.log.fsync_batching import FsyncBatching

from ...integration.waiting import STALL_S, eventually_async


class Log:
    """A log that counts its syncs. Each sync waits for ``gate`` and covers what was appended when it began."""

    name = "orders-0"

    def __init__(self) -> None:
        self.recovery_point = 0
        self.log_end_offset = 0
        self.syncs = 0
        self.began = threading.Event()
        self.gate = threading.Event()
        self.failure: Exception | None = None

    def flush(self) -> None:
        end_offset = self.log_end_offset
        self.syncs += 1
        self.began.set()
        assert self.gate.wait(STALL_S)
        if self.failure is not None:
            raise self.failure
        self.recovery_point = end_offset


async def appended(commits: FsyncBatching, log: Log) -> int:
    log.log_end_offset += 1
    offset = log.log_end_offset
    await commits.synced(log, offset)  # type: ignore[arg-type]
    assert log.recovery_point >= offset
    return offset


async def until(event: threading.Event) -> None:
    assert await asyncio.to_thread(event.wait, STALL_S)


def test_all_that_come_during_a_sync_share_the_next() -> None:
    async def work() -> None:
        commits, log = FsyncBatching(2), Log()
        first = asyncio.create_task(appended(commits, log))
        await until(log.began)
        rest = [asyncio.create_task(appended(commits, log)) for _ in range(50)]
        await asyncio.sleep(0)
        assert not any(task.done() for task in (first, *rest))
        log.gate.set()
        assert await asyncio.gather(first, *rest) == list(range(1, 52))
        assert log.syncs == 2
        statistics = commits.statistics()
        assert (statistics.waits, statistics.syncs, statistics.in_progress) == (51, 2, 0)
        commits.close()

    asyncio.run(work())


def test_appends_in_a_row_do_not_find_a_sync_that_has_just_ended() -> None:
    async def work() -> None:
        commits, log = FsyncBatching(1), Log()
        log.gate.set()

        async def in_a_row() -> None:
            for _ in range(200):
                await appended(commits, log)

        await asyncio.wait_for(asyncio.gather(*(in_a_row() for _ in range(4))), STALL_S)
        assert log.recovery_point == 800
        commits.close()

    asyncio.run(work())


def test_partitions_do_not_wait_for_each_other() -> None:
    async def work() -> None:
        commits, slow, quick = FsyncBatching(2), Log(), Log()
        quick.gate.set()
        waiting = asyncio.create_task(appended(commits, slow))
        await until(slow.began)
        assert await appended(commits, quick) == 1
        assert not waiting.done()
        slow.gate.set()
        await waiting
        commits.close()

    asyncio.run(work())


def test_a_failed_sync_fails_all_that_wait_for_it() -> None:
    async def work() -> None:
        commits, log = FsyncBatching(1), Log()
        first = asyncio.create_task(appended(commits, log))
        await until(log.began)
        rest = [asyncio.create_task(appended(commits, log)) for _ in range(3)]
        await asyncio.sleep(0)
        log.failure = StorageError("input/output error")
        log.gate.set()
        results = await asyncio.gather(first, *rest, return_exceptions=True)
        assert [type(result) for result in results] == [StorageError] * 4
        commits.close()

    asyncio.run(work())


def test_a_wait_for_records_that_are_truncated_meanwhile_fails() -> None:
    async def work() -> None:
        commits, log = FsyncBatching(1), Log()
        kept = asyncio.create_task(appended(commits, log))
        await until(log.began)
        truncated = asyncio.create_task(appended(commits, log))
        await asyncio.sleep(0)
        log.log_end_offset = 1
        log.gate.set()
        assert await kept == 1
        with pytest.raises(NotLeaderError, match="orders-0 were truncated"):
            await asyncio.wait_for(truncated, STALL_S)
        commits.close()

    asyncio.run(work())


def test_a_sync_continues_when_a_waiter_is_cancelled() -> None:
    async def work() -> None:
        commits, log = FsyncBatching(1), Log()
        first = asyncio.create_task(appended(commits, log))
        await until(log.began)
        second = asyncio.create_task(appended(commits, log))
        await asyncio.sleep(0)
        first.cancel()
        log.gate.set()
        assert await second == 2
        with pytest.raises(asyncio.CancelledError):
            await first
        commits.close()

    asyncio.run(work())


def test_a_sync_within_a_time_is_begun_by_itself_and_only_once() -> None:
    async def work() -> None:
        commits, log = FsyncBatching(1), Log()
        log.log_end_offset = 7
        log.gate.set()
        for _ in range(3):
            commits.sync_within(log, 0.01)  # type: ignore[arg-type]
        await until(log.began)
        await eventually_async(lambda: log.recovery_point >= 7)
        assert (log.recovery_point, log.syncs) == (7, 1)
        commits.sync_within(log, 60)  # type: ignore[arg-type]
        commits.close()

    asyncio.run(work())
