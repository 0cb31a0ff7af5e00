"""Tests of random tests.

Each run has new cases, and a failure can be repeated.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
TESTS = """
from hypothesis import given, strategies as st

@given(st.integers())
def test_property(number):
    print("example", number)
    assert number < 1_000_000

def test_seeded(seed):
    assert False
"""


def run(directory: Path, *arguments: str, **environment: str) -> str:
    """Run both tests with the suite's own settings and return the output."""
    file = directory / "test_drawn.py"
    file.write_text(TESTS)
    options = ["-p", "tests.conftest", "-p", "no:cacheprovider", "--import-mode=importlib", "-s", "-c", os.devnull]
    command = [sys.executable, "-m", "pytest", *options, "--rootdir", str(directory), *arguments, str(file)]
    variables = {**os.environ, "HYPOTHESIS_STORAGE_DIRECTORY": str(directory / "kept"), "CI": "true", **environment}
    return subprocess.run(command, cwd=ROOT, env=variables, capture_output=True, text=True, check=False).stdout


def examples(output: str) -> list[int]:
    return [int(number) for number in re.findall(r"^example (-?\d+)$", output, re.MULTILINE)]


def seeds(output: str) -> set[str]:
    return set(re.findall(r"TEST_SEED=(\d+)", output))


@pytest.mark.slow
def test_each_run_draws_other_examples_in_the_same_order_of_tests(tmp_path: Path) -> None:
    first, second = (run(tmp_path, "--randomly-seed=5", HYPOTHESIS_STORAGE_DIRECTORY=str(tmp_path / n)) for n in "ab")
    assert examples(first)
    assert examples(first) != examples(second)
    assert seeds(first) == seeds(second), "pytest's seed repeats the seeds of other random tests"


@pytest.mark.slow
def test_a_failing_example_is_printed_and_is_the_first_of_the_next_run(tmp_path: Path) -> None:
    failed = run(tmp_path)
    assert "@reproduce_failure(" in failed
    assert examples(failed)[0] != 1_000_000
    again = run(tmp_path, TEST_SEED="17")
    assert examples(again)[0] == 1_000_000
    assert seeds(again) == {"17"}
    assert seeds(failed) != {"17"}
