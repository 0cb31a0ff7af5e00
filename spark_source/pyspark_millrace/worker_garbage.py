"""Cheap garbage collection in Spark's Python workers: imported objects are frozen.

Spark's daemon collects garbage after every task, and traverses the objects of a thousand modules each time. That takes
50 ms, longer than a read of 16 MiB, and most of a worker's time for a small micro-batch. Frozen objects are not
traversed again. Later garbage of tasks is collected as before.

millrace's daemon freezes after every task. On clusters with Spark's daemon the tasks freeze at their end.
"""

from __future__ import annotations

import gc
import sys
from functools import cache


def settle_worker() -> None:
    """Freeze the current objects if modules were imported since the last call; for the end of a task."""
    _freeze(len(sys.modules))


@cache
def _freeze(modules: int) -> None:
    gc.collect()
    gc.freeze()
