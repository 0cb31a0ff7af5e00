"""Tests of coordinators that crash at any moment.

Answered operations hold, and unanswered ones hold completely or not at all. The real coordinators run on real logs. The
operations are offsets, transactions, assignments of groups, and acknowledgements of share groups. A kill keeps all
writes. After a power failure, brokers that sync before they acknowledge keep their promises.
"""

from __future__ import annotations

import asyncio
import os
import random
from pathlib import Path

import pytest

from .coordinators import Actors, InlineExecutor, Promises, drive, fill_queue, make_durable, opened, verify
from .disk import SimulatedDisk
from .world import WorldClock

ROUNDS_OF_EACH = 12


@pytest.fixture(autouse=True)
def one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """Run everything in one thread on a virtual clock, so that a seed always gives the same run."""
    monkeypatch.setattr("millrace_broker.log.periodic_work._TICK_S", 1e9)
    monkeypatch.setattr("millrace_broker.purgatory.timer.Timer.start", lambda *_: None)  # ``drive`` runs the loop
    for module in ("runtime.executors", "runtime.resizable_pool"):
        monkeypatch.setattr(f"millrace_broker.{module}.ThreadPoolExecutor", InlineExecutor)


class Crashes:
    """A source of disk images as crashes leave them.

    It takes one about every ``interval`` steps.
    """

    def __init__(self, disk: SimulatedDisk, choose: random.Random, *, is_kill: bool, interval: int) -> None:
        self.images: list[tuple[SimulatedDisk, Promises]] = []
        self._disk, self._choose, self._is_kill, self._interval = disk, choose, is_kill, interval

    def begin(self, promises: Promises) -> None:
        def on_step() -> None:
            if self._choose.random() < 1 / self._interval:
                disk = self._disk.after_kill() if self._is_kill else self._disk.after_power_loss(self._choose)
                self.images.append((disk, promises.copy()))

        self._disk.on_step = on_step

    def end(self) -> None:
        self._disk.on_step = lambda: None


async def crash(directory: Path, seed: int) -> int:
    """Let the coordinators work, crash, and check the rest. Return the number of crashes."""
    choose, clock, disk = random.Random(seed), WorldClock(), SimulatedDisk(seed=seed)
    is_kill = seed % 2 == 0
    disk.now_ms = clock.now_ms
    make_durable(disk, directory)
    crashes = Crashes(disk, choose, is_kill=is_kill, interval=100)
    async with opened(directory, disk, clock, syncs=not is_kill) as broker:
        await fill_queue(broker)
        actors = Actors(broker, clock, seed)
        crashes.begin(actors.promises)
        await drive(broker, clock, *actors.work(ROUNDS_OF_EACH))
        crashes.end()
    for image, promises in crashes.images:
        again = Crashes(image, choose, is_kill=is_kill, interval=100)
        again.begin(promises)
        async with opened(directory, image, clock, syncs=not is_kill) as broker:
            await drive(broker, clock, verify(broker, promises))
            again.end()
        for second, _ in again.images[:1]:
            async with opened(directory, second, clock, syncs=not is_kill) as broker:
                await drive(broker, clock, verify(broker, promises))
    return len(crashes.images)


@pytest.mark.slow
@pytest.mark.dial("COORDINATOR_CRASH_ROUNDS", seconds=5)
def test_coordinators_keep_acknowledged_state_after_a_crash_at_any_step(rounds: int, tmp_path: Path) -> None:
    first = int(os.environ.get("COORDINATOR_CRASH_SEED", 0)) or None
    seeds = [first] if first is not None else range(1, rounds + 1)
    images = 0
    for seed in seeds:
        try:
            images += asyncio.run(crash(tmp_path / str(seed), seed))
        except BaseException:
            print(f"COORDINATOR_CRASH_SEED={seed} repeats this")
            raise
    assert images > 5 * len(seeds)
