"""Tests of the C library's handling of freed memory.

They run in a process of their own because the settings apply to the whole process.
"""

from __future__ import annotations

import platform
import subprocess
import sys

import pytest

pytestmark = pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="settings of glibc")

_PRELUDE = """
import resource
from millrace_broker.runtime.malloc import keep_heaps_small

def faults(size, count):
    def pass_by():
        blocks = [b"x" * size for _ in range(count)]
    for _ in range(3):
        pass_by()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(10):
        pass_by()
    return (resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before) / 10

def resident_pages():
    return int(open("/proc/self/statm").read().split()[1])

assert keep_heaps_small()
"""


def run(script: str) -> None:
    done = subprocess.run([sys.executable, "-c", _PRELUDE + script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_blocks_of_answers_are_used_again_without_the_kernel() -> None:
    answer_bytes = 4 * 2**20 - 2**16
    run(f"pages = faults({answer_bytes}, 6); assert pages < 500, pages")


def test_memory_of_a_burst_is_returned_also_below_a_remaining_block() -> None:
    # By default glibc would allocate the next burst on the heap after the first block is freed, and the remaining block
    # would then hold that memory.
    run(
        """
before = resident_pages()
first = b"x" * (8 * 2**20)
del first
burst = [b"x" * (8 * 2**20) for _ in range(32)]
stays = [b"y" * 100_000 for _ in range(64)]
assert resident_pages() - before > 60_000
del burst
kept = (resident_pages() - before) * resource.getpagesize()
assert kept < 40 * 2**20, kept
"""
    )
