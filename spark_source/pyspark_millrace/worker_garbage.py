"""A Python worker of Spark's spared the search for garbage in everything that it has imported.

Spark's daemon collects garbage after every task, and walks through the objects of a thousand modules each time: 50 ms,
which is more than reading 16 MiB takes, and most of what a worker does for a small micro-batch. What is frozen is not
walked again. What a task leaves behind later is collected as before.

Our own daemon does it after every task; tasks do it themselves at their end for daemons that are Spark's, on clusters.
"""

from __future__ import annotations

import gc
import sys
from functools import cache


def settle_worker() -> None:
    """Freeze what this process has, if modules were imported since it last did; for the end of a task's work."""
    _freeze(len(sys.modules))


@cache
def _freeze(modules: int) -> None:
    gc.collect()
    gc.freeze()
