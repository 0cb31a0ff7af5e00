"""Records that are read ahead are those that a read would return."""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.config.topic import TopicConfig
from millrace.errors import StorageError
from millrace.records import Record, build_rows_batch, end_of_batches
from millrace_broker.log import OsFiles, PartitionLog, ReplicatedBatches, read_ahead
from millrace_broker.log.read_ahead import NextRead, ReadAhead
from millrace_broker.log.read_threads import LogReads, ReadPlace
from millrace_broker.log.tiered.remote_reads import RemoteReaders
from millrace_broker.runtime import Executors

from ...integration.waiting import eventually_async
from .conftest import ManualClock

OpenLog = Callable[..., PartitionLog]
Batch = Callable[..., bytes]


@asynccontextmanager
async def ahead_of(bytes_max: int = 10_000) -> AsyncIterator[ReadAhead]:
    executors = Executors(1, time.monotonic)
    reads = LogReads(executors, RemoteReaders(1, 1))
    try:
        yield ReadAhead(reads, bytes_max)
    finally:
        reads.close()
        executors.close()


def filled(open_log: OpenLog, batch: Batch, batches: int = 8) -> PartitionLog:
    """Return a log with batches of two records each."""
    log = open_log()
    for _ in range(batches):
        log.append(batch([1, 2]))
    return log


def test_the_next_read_finds_the_records_once(open_log: OpenLog, batch: Batch) -> None:
    log, size_bytes = filled(open_log, batch), len(batch([1, 2]))

    async def run() -> None:
        async with ahead_of() as ahead:
            found = await ahead.read(NextRead(log, 4, 16, 2 * size_bytes))
            assert found == log.read(4, 2 * size_bytes)
            assert ahead.held_bytes == len(found) == 2 * size_bytes
            assert ahead.take(log, 6, 16, 1000) is None, "another offset"
            assert ahead.take(log, 4, 16, 1000) == found
            assert ahead.held_bytes == 0
            assert ahead.take(log, 4, 16, 1000) is None

    asyncio.run(run())
    log.close()


def test_records_are_only_given_to_a_response_with_room(open_log: OpenLog, batch: Batch) -> None:
    log, size_bytes = filled(open_log, batch), len(batch([1, 2]))

    async def run() -> None:
        async with ahead_of() as ahead:
            found = await ahead.read(NextRead(log, 4, 16, size_bytes))
            assert ahead.take(log, 4, 16, size_bytes - 1) is None
            await ahead.read(NextRead(log, 4, 16, size_bytes))
            assert ahead.take(log, 4, 16, size_bytes) == found

    asyncio.run(run())
    log.close()


def test_records_above_the_end_of_a_reader_are_not_given(open_log: OpenLog, batch: Batch) -> None:
    """The high watermark of a replica may be lower again after a change of the leader."""
    log, size_bytes = filled(open_log, batch), len(batch([1, 2]))

    async def run() -> None:
        async with ahead_of() as ahead:
            for end_offset in (5, 6):
                found = await ahead.read(NextRead(log, 4, 16, size_bytes))
                assert ahead.take(log, 4, end_offset, 1000) == (found if end_offset == 6 else None)

    asyncio.run(run())
    log.close()


@pytest.mark.parametrize("change", ["truncate", "truncate and append", "delete", "restart"])
def test_records_that_are_gone_are_not_given(open_log: OpenLog, batch: Batch, change: str) -> None:
    log = filled(open_log, batch)

    async def run() -> None:
        async with ahead_of() as ahead:
            assert await ahead.read(NextRead(log, 4, 16, 1000))
            if change == "delete":
                log.delete_records(5)
            elif change == "restart":
                log.begin_at(4)
            else:
                log.truncate_to(6)
            while change == "truncate and append" and log.log_end_offset < 16:
                log.append(batch([7]))
            assert ahead.take(log, 4, log.log_end_offset, 1000) is None

    asyncio.run(run())
    log.close()


def test_records_of_another_segment_are_not_held(open_log: OpenLog, batch: Batch) -> None:
    """Behind a gap that compaction left, a read gets records of the next segment, which may be truncated."""
    log, far = open_log({"cleanup.policy": "compact"}), 2**31 + 1000
    log.append_replicated(ReplicatedBatches(batch()))
    log.append_replicated(ReplicatedBatches(batch([5], base_offset=far)))

    async def run() -> None:
        async with ahead_of() as ahead:
            assert await ahead.read(NextRead(log, 1, far + 1, 1000))
            log.truncate_to(far)
            log.append_replicated(ReplicatedBatches(batch([6], base_offset=far)))
            assert ahead.take(log, 1, far + 1, 1000) is None
            assert ahead.held_bytes == 0

    asyncio.run(run())
    log.close()


def test_records_that_end_with_the_log_are_not_given_after_an_append(open_log: OpenLog, batch: Batch) -> None:
    """A fetch with ``min_bytes`` would otherwise wait, although there are more records."""
    log = filled(open_log, batch)

    async def run() -> None:
        async with ahead_of() as ahead:
            found = await ahead.read(NextRead(log, 12, 16, 1000))
            assert ahead.take(log, 12, 16, 1000) == found
            await ahead.read(NextRead(log, 12, 16, 1000))
            log.append(batch([1]))
            assert ahead.take(log, 12, 17, 1000) is None

    asyncio.run(run())
    log.close()


def test_no_more_than_the_limit_is_held(open_log: OpenLog, batch: Batch) -> None:
    log, size_bytes = filled(open_log, batch), len(batch([1, 2]))

    async def run() -> None:
        async with ahead_of(3 * size_bytes) as ahead:
            for offset in range(0, 16, 2):
                assert bool(await ahead.read(NextRead(log, offset, 16, size_bytes))) is (offset < 6)
                assert ahead.held_bytes <= 3 * size_bytes
            held = [offset for offset in range(0, 16, 2) if ahead.take(log, offset, 16, 1000)]
            assert held == [0, 2, 4]
            assert await ahead.read(NextRead(log, 0, 16, 3 * size_bytes + 1)) == b""
            assert ahead.held_bytes == 0

    asyncio.run(run())
    log.close()


def test_reads_in_progress_count(open_log: OpenLog, batch: Batch, monkeypatch: pytest.MonkeyPatch) -> None:
    log = filled(open_log, batch)
    monkeypatch.setattr(LogReads, "place_of_cached_read", lambda *_: ReadPlace.IO_THREAD)

    async def run() -> None:
        async with ahead_of(1000) as ahead:
            first = asyncio.ensure_future(ahead.read(NextRead(log, 0, 16, 700)))
            await asyncio.sleep(0)
            assert ahead.held_bytes == 700
            assert await ahead.read(NextRead(log, 2, 16, 700)) == b""
            found = await first
            assert 0 < ahead.held_bytes == len(found) < 700

    asyncio.run(run())
    log.close()


def test_records_that_nobody_fetches_are_dropped(
    open_log: OpenLog, batch: Batch, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = filled(open_log, batch)
    monkeypatch.setattr(read_ahead, "KEPT_S", 0.01)

    async def run() -> None:
        async with ahead_of() as ahead:
            assert await ahead.read(NextRead(log, 4, 16, 1000))
            await eventually_async(lambda: not ahead.held_bytes)
            assert ahead.take(log, 4, 16, 1000) is None

    asyncio.run(run())
    log.close()


def test_an_error_is_left_to_the_fetch(open_log: OpenLog, batch: Batch, monkeypatch: pytest.MonkeyPatch) -> None:
    log = filled(open_log, batch)

    def fail(*_: object, **__: object) -> bytes:
        raise StorageError("input/output error")

    async def run() -> None:
        async with ahead_of() as ahead:
            with monkeypatch.context() as patch:
                patch.setattr(PartitionLog, "read", fail)
                assert await ahead.read(NextRead(log, 4, 16, 1000)) == b""
            assert ahead.held_bytes == 0
            assert await ahead.read(NextRead(log, 4, 16, 1000))

    asyncio.run(run())
    log.close()


STEPS = st.one_of(
    st.tuples(st.just("append"), st.integers(1, 3)),
    st.tuples(st.sampled_from(["ahead", "take", "truncate", "delete"]), st.integers(0, 12)),
    st.tuples(st.just("roll"), st.just(0)),
)


@given(steps=st.lists(STEPS, max_size=25), limit=st.sampled_from([100, 200, 350]))
def test_records_are_what_a_read_returns(steps: list[tuple[str, int]], limit: int) -> None:
    async def run(log: PartitionLog) -> None:
        async with ahead_of() as ahead:
            for step, number in steps:
                end_offset = log.log_end_offset
                is_inside = log.log_start_offset <= number <= end_offset
                if step == "append":
                    records = [Record(value=b"%d" % (end_offset + each), timestamp_ms=5) for each in range(number)]
                    log.append(build_rows_batch(records))
                elif step == "ahead":
                    await ahead.read(NextRead(log, number, end_offset, limit))
                elif step == "take":
                    found = ahead.take(log, number, end_offset, limit)
                    if found is not None:
                        assert found == log.read(number, limit, end_offset=end_offset, min_one_batch=False)
                        assert end_of_batches(found, number) <= end_offset
                elif step == "truncate" and is_inside:
                    log.truncate_to(number)
                elif step == "delete" and is_inside:
                    log.delete_records(number)
                elif step == "roll":
                    log.roll()

    with tempfile.TemporaryDirectory() as directory:
        log = PartitionLog(
            topic="orders",
            topic_id=UUID(int=1),
            partition=0,
            config=TopicConfig.load({}),
            clock=ManualClock(),
            files=OsFiles(),
            directory=Path(directory),
        )
        asyncio.run(run(log))
        log.close()
