"""Tests of the periodic work of a broker's logs."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest

from millrace.config.topic import TopicConfig
from millrace.errors import MillraceError, StorageError
from millrace_broker.log import LogManager
from millrace_broker.log.periodic_work import PeriodicWork
from millrace_broker.runtime import Executors

TICKS_MAX = 20


class Inline:
    """Executors that run a function at once."""

    async def run_io(self, function: Callable[[], None]) -> None:
        function()


def run(
    manager: LogManager,
    monkeypatch: pytest.MonkeyPatch,
    tick: Callable[[int], None],
    *,
    ends_at: int,
    metadata_directory: Path | None = None,
) -> tuple[list[int], list[MillraceError]]:
    """Run the work; ``tick`` gets the number of each tick. Return the ticks with new failures, and what stops it."""
    monkeypatch.setattr("millrace_broker.log.periodic_work._TICK_S", 0)
    ticks, told, stops = 0, [], []

    async def work() -> None:
        ended = asyncio.Event()

        def ticked() -> None:
            nonlocal ticks
            ticks += 1
            if ticks >= ends_at:
                ended.set()
            tick(ticks)

        async def disks_failed() -> None:
            told.append(ticks)

        def fail(error: MillraceError) -> None:
            stops.append(error)

        monkeypatch.setattr(manager, "tick", ticked)
        periodic = PeriodicWork(
            manager,
            cast(Executors, Inline()),
            metadata_directory=metadata_directory,
            disks_failed=disks_failed,
            fail=fail,
        )
        await periodic.close()
        periodic.start()
        await ended.wait()
        for _ in range(TICKS_MAX):
            await asyncio.sleep(0)
        await periodic.close()

    asyncio.run(work())
    return told, stops


@pytest.fixture
def manager(tmp_path: Path, clock: Any) -> LogManager:
    return LogManager.open(
        [tmp_path / name for name in "abc"], broker_id=1, cluster_id="rivers", defaults=TopicConfig(), clock=clock
    )


def fail_directory(manager: LogManager, name: str) -> None:
    next(each for each in manager._directories if each.path.name == name).fail(StorageError(f"{name} is gone"))


def test_each_new_failure_of_a_directory_is_reported_once(
    manager: LogManager, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    fail_directory(manager, "a")  # before the work begins

    def tick(number: int) -> None:
        if number == 3:
            fail_directory(manager, "b")

    told, stops = run(manager, monkeypatch, tick, ends_at=6, metadata_directory=tmp_path / "c")
    assert (told, stops) == ([3], [])


def test_the_work_stops_the_broker_once_with_its_last_directory(
    manager: LogManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    ticks = []

    def tick(number: int) -> None:
        ticks.append(number)
        for name in "abc"[: number - 1]:
            if any(each.path.name == name for each in manager._directories):
                fail_directory(manager, name)

    told, [stop] = run(manager, monkeypatch, tick, ends_at=4)
    assert told == [2, 3]
    assert stop.message == "all log directories have failed: a is gone; b is gone; c is gone"
    assert ticks == [1, 2, 3, 4]


def test_an_unexpected_error_is_logged_and_the_work_continues(
    manager: LogManager, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def tick(number: int) -> None:
        if number == 1:
            raise ValueError("odd")

    assert run(manager, monkeypatch, tick, ends_at=3) == ([], [])
    assert "periodic work failed and is tried again" in caplog.text
