"""Tests of state logs and shards on real logs, without a broker."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from millrace.errors import (
    CoordinatorLoadInProgressError,
    CoordinatorNotAvailableError,
    DiskFullError,
    MessageTooLargeError,
    MillraceError,
    NotCoordinatorError,
    StorageError,
    UnknownTopicOrPartitionError,
)
from millrace_broker.coordinators import (
    OFFSETS_TOPIC,
    LoadedBatch,
    Shards,
    StateLog,
    StateRecord,
    in_time,
    when_done,
    written,
)
from millrace_broker.decisions import LeaderAndIsrRequest
from millrace_broker.log import LogManager, PartitionLog
from millrace_broker.metadata import TopicInfo

from .parts import LateReplicas, Parts, opened_parts


class Memory:
    """A shard that keeps the records it is given."""

    def __init__(self, log: StateLog) -> None:
        self.log = log
        self.values: dict[bytes, bytes | None] = {}
        self.batches: list[LoadedBatch] = []
        self.is_active = False

    def replay(self, batch: LoadedBatch) -> None:
        self.batches.append(batch)
        for record in batch.records:
            self.values[record.key] = record.value

    def activate(self) -> None:
        self.is_active = True

    def deactivate(self) -> None:
        self.is_active = False


@asynccontextmanager
async def opened(directory: Path, **options: str) -> AsyncIterator[tuple[Parts, Shards[Memory]]]:
    async with opened_parts(directory, **options) as parts:
        shards = parts.shards.shards(OFFSETS_TOPIC, Memory)
        shards.start()
        try:
            yield parts, shards
        finally:
            await shards.close()


def run(scenario: Callable[[Path], object], directory: Path) -> None:
    asyncio.run(scenario(directory))  # type: ignore[arg-type]


def test_appended_records_are_read_again_in_order(tmp_path: Path) -> None:
    async def scenario(directory: Path) -> None:
        async with opened(directory) as (_, shards):
            assert await shards.ensure_topic() == 3
            shard = await _loaded(shards, 1)
            await asyncio.gather(*(shard.log.append([_record(n), _record(n + 100)]) for n in range(20)))
            await shard.log.append([StateRecord(b"3", None)])
        async with opened(directory) as (_, shards):
            again = await _loaded(shards, 1)
            assert again.is_active
            expected: dict[bytes, bytes | None] = {}
            for n in range(20):
                expected |= {b"%d" % n: b"v%d" % n, b"%d" % (n + 100): b"v%d" % (n + 100)}
            assert list(again.values.items()) == list((expected | {b"3": None}).items())

    run(scenario, tmp_path)


def test_appends_that_wait_together_share_batches_and_get_their_own_offsets(tmp_path: Path) -> None:
    async def scenario(directory: Path) -> None:
        async with opened(directory) as (_, shards):
            await shards.ensure_topic()
            shard = await _loaded(shards, 0)
            offsets = await asyncio.gather(*(shard.log.append([_record(n), _record(n)]) for n in range(50)))
            assert offsets == list(range(0, 100, 2))
            again = Memory(shard.log)
            await shard.log.load(again.replay)
            assert len(again.batches) < 10
            assert [record for batch in again.batches for record in batch.records] == [
                _record(n) for n in range(50) for _ in range(2)
            ]

    run(scenario, tmp_path)


def test_an_append_at_once_ends_at_once_unless_others_wait(tmp_path: Path) -> None:
    async def scenario(directory: Path) -> None:
        async with opened(directory) as (_, shards):
            await shards.ensure_topic()
            shard = await _loaded(shards, 0)
            await shard.log.append([_record(0)])
            order: list[int] = []

            def submit(number: int, *, at_once: bool) -> asyncio.Future[int]:
                appending = shard.log.submit([_record(number)], at_once=at_once)
                when_done(appending, lambda _: order.append(number))
                return appending

            first = submit(1, at_once=True)
            assert first.done()
            assert order == [1]
            assert await written(first) == 1
            second, third = submit(2, at_once=False), submit(3, at_once=True)
            assert not second.done()
            assert not third.done()
            assert (await written(third), await written(second)) == (3, 2)
            assert order == [1, 2, 3]
            again = Memory(shard.log)
            await shard.log.load(again.replay)
            assert [len(batch.records) for batch in again.batches] == [1, 1, 2]

    run(scenario, tmp_path)


def test_an_append_at_once_waits_for_late_replicas_in_a_task(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(directory: Path) -> None:
        async with opened(directory) as (_, shards):
            await shards.ensure_topic()
            shard = await _loaded(shards, 0)
            await shard.log.append([_record(0)])
            with monkeypatch.context() as patched:
                replicas = LateReplicas(patched, shard.log._partition().replica)
                appends = [shard.log.submit([_record(number)], at_once=True) for number in (1, 2, 3)]
                assert not any(each.done() for each in appends)
                replicas.are_late = False
                assert [await written(each) for each in appends] == [1, 2, 3]
            again = Memory(shard.log)
            await shard.log.load(again.replay)
            assert [len(batch.records) for batch in again.batches] == [1, 1, 2]

    run(scenario, tmp_path)


def test_an_append_of_a_cancelled_call_is_finished(tmp_path: Path) -> None:
    async def scenario(directory: Path) -> None:
        async with opened(directory) as (_, shards):
            await shards.ensure_topic()
            shard = await _loaded(shards, 0)
            call = asyncio.create_task(shard.log.append([_record(1)]))
            await asyncio.sleep(0)
            call.cancel()
            assert await shard.log.append([_record(2)]) == 1

    run(scenario, tmp_path)


def test_a_failure_is_of_the_calls_that_it_concerns(tmp_path: Path) -> None:
    async def scenario(directory: Path) -> None:
        async with opened(directory, **{"message.max.bytes": "1048588"}) as (_, shards):
            await shards.ensure_topic()
            shard = await _loaded(shards, 0)
            large = StateRecord(b"large", bytes(2 * 2**20))
            results = await asyncio.gather(
                shard.log.append([_record(1)]),
                shard.log.append([large]),
                shard.log.append([_record(2)]),
                return_exceptions=True,
            )
            assert (results[0], results[2]) == (0, 1)
            assert isinstance(results[1], MessageTooLargeError)

    run(scenario, tmp_path)


@pytest.mark.parametrize(
    ("failure", "answer"),
    [
        (StorageError("the disk failed"), NotCoordinatorError),
        (DiskFullError("no space left"), CoordinatorNotAvailableError),
        (UnknownTopicOrPartitionError("the topic is being deleted"), CoordinatorNotAvailableError),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, MillraceError) else "",
)
def test_a_client_finds_the_coordinator_again_after_an_append_that_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failure: MillraceError, answer: type[MillraceError]
) -> None:
    def fail(*arguments: object, **options: object) -> None:
        raise failure

    async def scenario(directory: Path) -> None:
        async with opened(directory) as (_, shards):
            await shards.ensure_topic()
            shard = await _loaded(shards, 0)
            with monkeypatch.context() as patched:
                patched.setattr(PartitionLog, "append_unsynced", fail)
                with pytest.raises(answer, match=failure.message) as raised:
                    await shard.log.append([_record(1)])
                assert raised.value.__cause__ is failure
            assert await shard.log.append([_record(2)]) == 0

    run(scenario, tmp_path)


def test_a_client_finds_the_coordinator_again_if_the_log_directory_has_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def offline(*arguments: object) -> None:
        raise StorageError("the log directory has failed")

    async def scenario(directory: Path) -> None:
        async with opened(directory) as (_, shards):
            await shards.ensure_topic()
            shard = await _loaded(shards, 0)
            monkeypatch.setattr(LogManager, "get", offline)
            with pytest.raises(NotCoordinatorError, match="has failed: find the coordinator again"):
                await shard.log.append([_record(1)])
            shards._role_changed(0)
            with pytest.raises(NotCoordinatorError, match="has failed: find the coordinator again"):
                shards.shard(0)
            monkeypatch.undo()

    run(scenario, tmp_path)


def test_an_append_waits_for_late_replicas_and_its_client_does_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An error after the append would leave the caller with a state that the log does not have.

    Kafka's Java consumer gives up for good after a time-out as the answer to SyncGroup, so the error is another one.
    """

    async def scenario(directory: Path) -> None:
        async with opened(directory) as (parts, shards):
            await shards.ensure_topic()
            shard = await _loaded(shards, 0)
            with monkeypatch.context() as patched:
                replicas = LateReplicas(patched, shard.log._partition().replica)
                state: list[int] = []

                async def change() -> None:
                    state.append(await shard.log.append([_record(1)]))

                with pytest.raises(CoordinatorNotAvailableError, match="has not ended within"):
                    await in_time(change(), parts.executors)
                with pytest.raises(CoordinatorNotAvailableError, match="has not ended within"):
                    await written(appending := shard.log.submit([_record(2)]))
                with pytest.raises(CoordinatorNotAvailableError, match="has not ended within"):
                    await appending  # it has not begun, so that calls do not pile up
                assert state == []
                replicas.are_late = False
                await parts.executors.finish_tasks()
                assert state == [0]
            assert await shard.log.append([_record(3)]) == 1

    run(scenario, tmp_path)


def test_a_closed_log_does_not_wait_for_late_replicas(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(directory: Path) -> None:
        async with opened(directory) as (_, shards):
            await shards.ensure_topic()
            shard = await _loaded(shards, 0)
            with monkeypatch.context() as patched:
                LateReplicas(patched, shard.log._partition().replica)
                appending = shard.log.submit([_record(1)])
                await shards.close()
                with pytest.raises(NotCoordinatorError, match="in time: find the coordinator again"):
                    await appending

    run(scenario, tmp_path)


def test_a_shard_does_not_append_after_its_partition_was_loaded_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario(directory: Path) -> None:
        async with opened(directory) as (parts, shards):
            requests: list[LeaderAndIsrRequest] = []
            become = parts.replicas.become

            async def noted(request: LeaderAndIsrRequest, marked: Mapping[str, TopicInfo]) -> Any:
                requests.append(request)
                return await become(request, marked)

            monkeypatch.setattr(parts.replicas, "become", noted)
            await shards.ensure_topic()
            shard = await _loaded(shards, 0)
            await parts.replicas.fence()
            for request in requests:
                await become(request, {})
            again = await _loaded(shards, 0)
            assert again is not shard
            with pytest.raises(NotCoordinatorError, match=r"loaded again.*find the coordinator again"):
                await shard.log.append([_record(1)])
            assert await again.log.append([_record(2)]) == 0

    run(scenario, tmp_path)


def test_shards_answer_once_they_are_read_and_until_they_are_closed(tmp_path: Path) -> None:
    async def scenario(directory: Path) -> None:
        async with opened(directory) as (_, shards):
            with pytest.raises(CoordinatorNotAvailableError, match="has not been created"):
                shards.shard_of("group")
            await shards.ensure_topic()
            shard = await _loaded(shards, shards.number_of("group"))
            assert shards.shard_of("group") is shard
            await shards.close()
            assert not shard.is_active
            with pytest.raises(CoordinatorNotAvailableError, match="stopping"):
                shards.shard_of("group")

    run(scenario, tmp_path)


async def _loaded(shards: Shards[Memory], number: int) -> Memory:
    try:
        return shards.shard(number)
    except CoordinatorLoadInProgressError:
        return await shards.wait_until_loaded(number)


def _record(number: int) -> StateRecord:
    return StateRecord(b"%d" % number, b"v%d" % number)
