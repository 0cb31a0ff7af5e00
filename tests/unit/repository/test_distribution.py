"""Test of the distribution of test files.

A run in which a process dies continues to its end.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from ...integration.waiting import run_to_end

ROOT = Path(__file__).parents[3]
SMALL = "def test_1(): pass\ndef test_2(): pass\n"
DYING = """
import os, time
from pathlib import Path
import pytest

@pytest.mark.parametrize("number", range(4))
def test_it(number):
    time.sleep(0.05)
    died = Path(__file__).with_name("died")
    if number == 2 and not died.exists():
        died.touch()
        os._exit(1)
"""


@pytest.mark.slow
def test_a_run_ends_whose_process_dies_after_it_has_ended_several_files(tmp_path: Path) -> None:
    for number in range(8):
        (tmp_path / f"test_{number}.py").write_text(SMALL)
    (tmp_path / "test_8.py").write_text(DYING)
    (tmp_path / "test_9.py").write_text(SMALL)
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST")}
    options = ["-p", "tests.distribution", "-p", "no:randomly", "-p", "no:cacheprovider", "--rootdir", str(tmp_path)]
    done = run_to_end(
        [sys.executable, "-m", "pytest", "-n", "2", "--dist", "loadfile", "--no-loadscope-reorder", *options],
        cwd=tmp_path,
        env=environment | {"PYTHONPATH": str(ROOT)},
    )
    assert done.returncode == 1, done.stdout + done.stderr
    assert "crashed while running 'test_8.py::test_it[2]'" in done.stdout
    assert "1 failed, 22 passed" in done.stdout
