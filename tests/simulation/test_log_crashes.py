"""Tests of crashes at any moment.

No promised record is lost, and none is invented.
"""

from __future__ import annotations

import os

import pytest

from .world import World

STEPS = 120


@pytest.mark.slow
@pytest.mark.dial("LOG_CRASH_ROUNDS", seconds=5)
def test_a_crash_at_every_step_keeps_all_promised_records(rounds: int) -> None:
    first = int(os.environ.get("LOG_CRASH_SEED", 0)) or None
    seeds = [first] if first is not None else range(1, rounds + 1)
    images = 0
    for seed in seeds:
        world = World(seed)
        try:
            world.run(STEPS)
        except BaseException:
            print(f"LOG_CRASH_SEED={seed} repeats this: {world.doing}, image {world.images}")
            raise
        images += world.images
    assert images > 5 * len(seeds)
