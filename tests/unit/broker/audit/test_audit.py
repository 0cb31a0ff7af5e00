"""Tests of the audit's writes to its topic and its spool.

Rows go to the topic, or to the spool and later from there to the topic. The tests provide the topic and the disk.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.errors import (
    CoordinatorNotAvailableError,
    InvalidRecordError,
    MessageTooLargeError,
    MillraceError,
    NotEnoughReplicasAfterAppendError,
    OutOfOrderSequenceError,
    StorageError,
)
from millrace_broker.audit import Audit, AuditSpool
from millrace_broker.audit.audit import ROWS_MAX
from millrace_broker.audit.events import AuditBatch, AuditRow
from millrace_broker.audit.spool import BLOCK_BYTES
from millrace_broker.log import OsFiles
from millrace_broker.runtime import Executors

DOWN = CoordinatorNotAvailableError("no leader")


def row(number: int, count: int = 1) -> AuditRow:
    return AuditRow(
        number,
        number,
        "User:a",
        "::1",
        "SSL",
        "app",
        "Fetch",
        "READ",
        "TOPIC",
        f"t{number}",
        allowed=True,
        decisions=count,
    )


class Queue:
    """Rows that a test gives."""

    def __init__(self) -> None:
        self.rows: list[AuditRow] = []
        self.recorded = self.dropped = 0

    def __len__(self) -> int:
        return len(self.rows)

    def record(self, *_: Any, **__: Any) -> None:
        raise AssertionError("decisions are not tested here")

    record_refused_login = record

    def drain(self) -> list[AuditRow]:
        rows, self.rows = self.rows, []
        return rows


class Topic:
    """A leader with idempotent producers. ``errors`` are raised by the next writes, before or after the append."""

    def __init__(self) -> None:
        self.rows: list[AuditRow] = []
        self.next_sequences: dict[int, int] = {}
        self.errors: list[Exception | None] = []
        self.always: MillraceError | None = None
        self.ids = 0

    async def producer_id(self) -> int:
        self.ids += 1
        return self.ids

    async def write(self, batch: AuditBatch, timeout_s: float) -> None:
        error = self.always or (self.errors.pop(0) if self.errors else None)
        if error is not None and not isinstance(error, NotEnoughReplicasAfterAppendError):
            raise error
        if batch.producer_id >= 0:
            expected = self.next_sequences.get(batch.producer_id)
            if expected is not None and batch.sequence < expected:
                return  # the answer of the first attempt
            if expected is not None and batch.sequence > expected:
                raise OutOfOrderSequenceError(f"{batch.sequence} after {expected}")
            self.next_sequences[batch.producer_id] = batch.sequence + len(batch.rows)
        self.rows += batch.rows
        if error is not None:
            raise error


class World:
    """An audit with its topic and its disk."""

    def __init__(self, directory: Path, max_bytes: int = 2**20, files: OsFiles | None = None) -> None:
        self.directory, self.max_bytes, self.files = directory, max_bytes, files or OsFiles()
        self.topic = Topic()
        self.given = 0

    async def start(self) -> None:
        self.queue = Queue()
        self.spool = AuditSpool(self.directory, self.files, self.max_bytes)
        self.executors = Executors(1, time.monotonic)
        queue: Any = self.queue
        self.audit = Audit(queue, self.spool, self.topic, self.executors, interval_s=3600)
        self.spool.open()

    async def step(self, rows: int = 1) -> None:
        self.queue.rows += [row(self.given + each) for each in range(rows)]
        self.given += rows
        await self.audit.step()

    @property
    def numbers(self) -> list[int]:
        return [each.time_ms for each in self.topic.rows]


def play(world: World, work: Coroutine[Any, Any, None]) -> None:
    async def run() -> None:
        await world.start()
        try:
            await work
        finally:
            world.executors.close()

    asyncio.run(run())


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path / "spool")


def test_rows_go_to_the_topic_and_none_to_the_disk(world: World) -> None:
    async def work() -> None:
        await world.step(1200)
        assert world.numbers == list(range(1200))
        assert not world.directory.exists()
        assert world.audit.statistics().written == 1200

    play(world, work())


def test_an_outage_goes_to_the_spool_and_back_in_order(world: World, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "millrace.audit")

    async def work() -> None:
        await world.step()
        world.topic.always = DOWN
        for _ in range(3):
            await world.step(2)
        found = world.audit.statistics()
        assert (found.spooled_batches, found.dropped, found.is_failing) == (3, 0, True)
        world.topic.always = None
        await world.step()
        assert world.numbers == list(range(8))
        found = world.audit.statistics()
        assert (found.spooled_batches, found.spooled_bytes, found.is_failing, found.written) == (0, 0, False, 8)

    play(world, work())
    lines = [record.getMessage() for record in caplog.records]
    assert len(lines) == 2, "one line for each change of the state"
    assert "cannot be written, and decisions are kept in" in lines[0]
    assert "written to its topic again" in lines[1]


def test_a_write_that_arrived_without_an_answer_is_there_once(world: World) -> None:
    async def work() -> None:
        world.topic.errors = [NotEnoughReplicasAfterAppendError("2 of 3")]
        await world.step(2)
        await world.step(2)
        assert world.numbers == [0, 1, 2, 3]

    play(world, work())


def test_rows_of_an_earlier_run_come_first_and_once(world: World) -> None:
    async def first() -> None:
        world.topic.errors = [NotEnoughReplicasAfterAppendError("it arrived"), DOWN]
        await world.step(2)
        world.queue.rows = [row(2)]
        await world.audit.close()
        assert len(world.spool) == 2

    async def second() -> None:
        world.given = 3
        await world.step()
        assert world.numbers == [0, 1, 2, 3]

    play(world, first())
    play(world, second())


def test_rows_beyond_the_bound_are_counted_and_later_ones_written(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "millrace.audit")
    world.max_bytes = 2 * BLOCK_BYTES

    async def work() -> None:
        world.topic.always = DOWN
        for _ in range(4):
            await world.step()
        assert world.audit.statistics().dropped == 2
        assert world.spool.size_bytes <= world.max_bytes
        world.topic.always = None
        await world.step()
        await world.step()
        # The row of the first step after the outage found the spool full.
        assert world.numbers == [0, 1, 5]
        assert world.audit.statistics().dropped == 3
        assert world.topic.ids == 1, "a batch that was never sent leaves its numbers to the next one"

    play(world, work())
    assert [record.levelname for record in caplog.records] == ["ERROR", "ERROR", "INFO"]


def test_a_disk_that_fails_too_loses_rows_and_says_so(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    class FullFiles(OsFiles):
        def make_directory(self, path: Path) -> None:
            raise StorageError(f"cannot create {path}: no space left")

    world = World(tmp_path / "spool", files=FullFiles())

    async def work() -> None:
        world.topic.always = DOWN
        await world.step(2)
        world.topic.always = None
        await world.step()
        assert world.numbers == [2]
        assert world.audit.statistics().dropped == 2
        assert not world.audit.statistics().is_failing

    play(world, work())
    assert "no space left" in caplog.text


def test_a_batch_that_no_topic_takes_keeps_no_other_rows_back(world: World) -> None:
    broken = UnicodeEncodeError("utf-8", "x", 0, 1, "surrogates not allowed")

    async def work() -> None:
        world.topic.errors = [broken]
        await world.step(ROWS_MAX + 2)
        assert world.numbers == [ROWS_MAX, ROWS_MAX + 1]
        assert world.audit.statistics().dropped == ROWS_MAX
        world.topic.errors = [DOWN, broken]  # the second batch follows the first to the spool
        await world.step(ROWS_MAX + 1)
        assert world.numbers[2:] == [2 * ROWS_MAX + 2]
        assert (len(world.spool), world.audit.statistics().damaged_files) == (0, 1)
        assert [path.suffix for path in world.directory.iterdir()] == [".damaged"]

    play(world, work())


@pytest.mark.parametrize("refusal", [MessageTooLargeError("9 bytes"), InvalidRecordError("no row")])
def test_batches_that_the_topic_refuses_are_set_aside_and_later_ones_written(
    world: World, refusal: MillraceError, caplog: pytest.LogCaptureFixture
) -> None:
    async def work() -> None:
        world.topic.always = DOWN
        await world.step()
        await world.step()
        world.topic.always = None
        world.topic.errors = [refusal]
        await world.step()
        assert world.numbers == [1, 2]
        assert not world.audit.statistics().is_failing
        world.topic.errors = [refusal, refusal]  # from memory, and from the spool
        await world.step()
        await world.step()
        assert world.numbers == [1, 2, 4]
        found = world.audit.statistics()
        assert (found.damaged_files, found.spooled_batches, found.dropped, found.is_failing) == (2, 0, 0, False)

    play(world, work())
    kept = [AuditBatch.decode(path.read_bytes()) for path in sorted(world.directory.iterdir())]
    assert [each.rows[0].time_ms for each in kept] == [0, 3]
    assert refusal.message in caplog.text


def test_batches_that_were_set_aside_count_toward_the_bound_until_they_are_removed(world: World) -> None:
    world.max_bytes = 2 * BLOCK_BYTES

    async def work() -> None:
        world.topic.always = MessageTooLargeError("9 bytes")
        for _ in range(3):
            await world.step()
        assert [path.name[19:] for path in sorted(world.directory.iterdir())] == ["0.json.damaged", "1.json.damaged"]
        assert world.audit.statistics().dropped == 1
        (world.directory / f"{0:020}.json.damaged").unlink()
        await world.step()
        assert world.audit.statistics().dropped == 1

    async def after_a_restart() -> None:
        world.topic.always = DOWN
        await world.step()
        assert world.audit.statistics().dropped == 1

    play(world, work())
    play(world, after_a_restart())


def test_a_leader_that_lost_the_numbers_gets_rows_without_them(world: World) -> None:
    async def work() -> None:
        await world.step()
        world.topic.next_sequences = {1: -5}
        await world.step()
        await world.step()
        assert world.numbers == [0, 1, 2]
        assert world.topic.ids == 2

    play(world, work())


def test_a_damaged_file_is_kept_and_the_next_one_is_read(world: World) -> None:
    async def work() -> None:
        world.topic.always = DOWN
        await world.step()
        await world.step()
        (world.directory / f"{0:020}.json").write_bytes(b"{")
        world.topic.always = None
        await world.step()
        assert world.numbers == [1, 2]
        assert world.audit.statistics().damaged_files == 1
        assert (world.directory / f"{0:020}.json.damaged").read_bytes() == b"{"

    play(world, work())


TEXTS = st.text(max_size=20)
ROWS = st.builds(
    AuditRow, *[st.integers(0, 2**40)] * 2, *[TEXTS] * 8, allowed=st.booleans(), decisions=st.integers(1, 2**40)
)


@given(st.lists(ROWS, max_size=5), st.integers(-1, 2**62), st.integers(-1, 2**31 - 1))
def test_a_batch_survives_its_file(rows: list[AuditRow], producer_id: int, sequence: int) -> None:
    batch = AuditBatch(tuple(rows), producer_id, sequence)
    assert AuditBatch.decode(batch.encode()) == batch
