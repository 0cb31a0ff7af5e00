"""Tests of simulated clusters under faults, and of planted faults."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from .planted import PLANTED

ROOT = Path(__file__).resolve().parents[3]
SEEDS_TO_FIND = 24
"""The maximum number of seeds to find each planted fault. The first seed finds most of them."""


def simulate(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the simulator in its own process, because a seed must also repeat the order of sets."""
    command = [sys.executable, "-m", "tests.simulation.cluster", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


@pytest.mark.slow
@pytest.mark.dial("CLUSTER_SIM_SEEDS", seconds=8)
@pytest.mark.parametrize("half", [0, 1])  # a soak runs them in two processes
def test_clusters_keep_their_promises(half: int, rounds: int, seed: int) -> None:
    count = (rounds + half) // 2
    ran = simulate("--seeds", str(count), "--first", str(seed))
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert f"0 of {count} seeds failed" in ran.stdout


@pytest.mark.slow
def test_a_broker_stops_while_partitions_are_taken_from_it() -> None:
    # The broker once failed while it closed its coordinators, and stayed partly stopped.
    assert simulate("--seed", "88").returncode == 0


@pytest.mark.slow
def test_a_seed_repeats_to_the_last_step() -> None:
    first, again, other = (simulate("--seed", seed).stdout for seed in ("4", "4", "12"))
    assert first == again
    assert first != other


@pytest.mark.slow
def test_a_failing_seed_fails_again_at_the_same_step() -> None:
    fault = "a new leader in the old epoch"
    first, again = (simulate("--seed", "2", "--plant", fault) for _ in range(2))
    assert first.returncode == again.returncode == 1
    assert first.stdout == again.stdout
    assert re.match(r"seed 2, step \d{3,}, [\d.]+ s: broker-", first.stdout), first.stdout
    last = first.stdout.partition("last events:\n")[2].splitlines()
    assert len(last) > 20
    assert last[-1] == f'again: make sim SEED=2 PLANT="{fault}"'


@pytest.fixture(scope="module")
def found() -> dict[str, str]:
    """Return the simulator's violation for each planted fault."""
    ran = simulate("--planted", "--seeds", str(SEEDS_TO_FIND))
    return dict(line.split(": ", 1) for line in ran.stdout.splitlines())


@pytest.mark.slow
@pytest.mark.parametrize("fault", PLANTED)
def test_a_planted_fault_is_found_as_the_expected_violation(fault: str, found: dict[str, str]) -> None:
    says = re.fullmatch(r"seed \d+, step \d+, [\d.]+ s: (.*)", found[fault])
    assert says is not None, f"{fault}: {found[fault]}"
    assert "unforeseen" not in says[1], "an error of the broker's code: the rule that is missing was not missed"
    assert re.search(PLANTED[fault].seen_as, says[1]), f"{fault}: {says[1]}"
