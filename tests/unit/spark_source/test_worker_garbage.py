"""Tests of a worker's garbage collection.

Imported objects are frozen, and objects of tasks are not.
"""

import sys

from ...integration.waiting import run_to_end

PROGRAM = """
import gc, sys
from pyspark_millrace.worker_garbage import settle_worker

settle_worker()
before = gc.get_freeze_count()
assert before > 1000
left = [[] for _ in range(5000)]
settle_worker()
assert gc.get_freeze_count() <= before  # nothing was imported, and what a task holds is not frozen
import wave
settle_worker()
assert gc.get_freeze_count() > before + 5000
print("settled")
"""


def test_a_worker_freezes_what_it_has_whenever_modules_were_imported():
    done = run_to_end([sys.executable, "-c", PROGRAM])
    assert done.stdout == "settled\n", done.stderr
