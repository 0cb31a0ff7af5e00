"""Tests of the figures that the operating system gives."""

from __future__ import annotations

import mmap
import os
import subprocess
import sys
from pathlib import Path

from benchmarks import machine

ROOT = Path(__file__).parents[3]


def test_private_memory_leaves_out_the_mapped_files_of_a_folder(tmp_path: Path) -> None:
    size = 32 * 2**20
    path = tmp_path / "log"
    path.write_bytes(b"x" * size)
    elsewhere = tmp_path.parent / "elsewhere"
    with path.open("r+b") as file, mmap.mmap(file.fileno(), size) as mapped:
        assert sum(mapped[:: mmap.PAGESIZE]) > 0  # touches every page, so that the memory of this process grows by each
        counted = machine.private_bytes(os.getpid(), elsewhere)
        left_out = machine.private_bytes(os.getpid(), tmp_path)
    assert counted - left_out > 0.5 * size  # other threads of this process allocate and free memory meanwhile


def test_own_work_is_not_foreign() -> None:
    # A new process has no children. Children of the test process may end meanwhile, and their memory is then not
    # counted any more.
    script = """
import time
from benchmarks import machine

started = time.monotonic()
with machine.CpuUse() as use:
    sum(number * number for number in range(10_000_000))
print(use.own_seconds, use.own_seconds / (time.monotonic() - started) + use.other_cores)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, cwd=ROOT)
    own_seconds, all_cores = map(float, done.stdout.split())
    assert own_seconds > 0
    assert all_cores <= 1.2 * (os.cpu_count() or 1)


def test_the_description_names_cores_memory_and_versions() -> None:
    text = machine.describe()
    for part in ("cores of", "GiB", "Python", "Java", "pyspark"):
        assert part in text
