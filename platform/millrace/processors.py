"""Number of processors of this process."""

from __future__ import annotations

import os


def processor_count() -> int:
    """Return the number of processors that this process may use; on systems without affinity, those of the machine."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
