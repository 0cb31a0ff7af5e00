"""Restarts of timers with a million pending ones, beside a thousand.

A restart cancels one timer and starts it again, as heartbeats do. Deadlines are random within a minute, and the time
advances by a millisecond with every hundred restarts. The wheel's costs do not depend on the number of timers. Any
difference is due to the processor's caches, which a thousand timers fit into.
"""

from __future__ import annotations

import contextlib
import random
import time
from collections.abc import Callable, Iterator
from typing import Any

from benchmarks.harness import Benchmark, Context, Measure, Sample, Side
from millrace_broker.purgatory import TimerEntry, TimingWheel

_RESTARTS = 300_000
_DELAY_MS_MAX = 60_000
_RESTARTS_PER_MS = 100
_SETTINGS = "one thread, in memory: nothing to fsync; 300,000 restarts"


def _nothing() -> None:
    pass


def _opened(pending: int) -> Callable[[Context], Any]:
    @contextlib.contextmanager
    def open_side(context: Context) -> Iterator[Measure]:
        numbers = random.Random(1)
        delays = [numbers.randrange(1, _DELAY_MS_MAX) for _ in range(_RESTARTS)]
        wheel, now_ms = TimingWheel(0), 0
        timers = [TimerEntry(delays[number % _RESTARTS], _nothing) for number in range(pending)]
        for timer in timers:
            wheel.add(timer)

        def measure() -> Sample:
            nonlocal now_ms
            started = time.perf_counter()
            for number, delay_ms in enumerate(delays):
                timers[number % pending].cancel()
                timer = timers[number % pending] = TimerEntry(now_ms + delay_ms, _nothing)
                wheel.add(timer)
                if number % _RESTARTS_PER_MS == 0:
                    now_ms += 1
                    wheel.advance(now_ms)
            return Sample(figure=_RESTARTS / (time.perf_counter() - started))

        measure()
        yield measure

    return open_side


BENCHMARK = Benchmark(
    name="pending_timers",
    title="Restart timers of a timing wheel with a million of them pending, against a thousand",
    unit="restarts/s",
    target_ratio=0.9,
    ours=Side(what="TimingWheel with 1,000,000 pending", settings=_SETTINGS, open=_opened(1_000_000)),
    peer=Side(what="TimingWheel with 1,000 pending", settings=_SETTINGS, open=_opened(1_000)),
)
