"""Keeping the process small: what the C library does with memory that was freed.

glibc gives each of many threads a heap of its own and hands little of it back. gRPC's and our threads pass blocks of
megabytes from one to the other, so that the same bytes end up resident in many heaps: two heaps hold as much traffic
in two thirds of the memory, at the same speed.

Blocks of several megabytes are mapped and unmapped one by one. Left to itself glibc stops doing so once it has seen
such a block freed, keeps them in its heaps instead, and after a burst of large requests the process stays as large as
it was then. Ordinary batches are smaller and stay in the heaps, which is faster.
"""

from __future__ import annotations

import ctypes
import logging
from typing import Final

_logger = logging.getLogger(__name__)

_M_ARENA_MAX: Final = -8  # malloc.h
_ARENAS: Final = 2
_M_MMAP_THRESHOLD: Final = -3
_MAPPED_BYTES_MIN: Final = 4 * 2**20
_M_TRIM_THRESHOLD: Final = -1
_KEPT_BYTES_MAX: Final = 32 * 2**20
"""What a heap keeps at its end. Answers to consumers are nearly 4 MiB each, several are under way, each is in memory
more than once on its way out. With half of this, those blocks went back to the kernel after each, to be had and cleared
anew: a third of the broker's CPU time.
"""


def keep_heaps_small() -> bool:
    """Limit what glibc keeps; to be called before threads are started. False where there is no glibc."""
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        _logger.debug("no mallopt here: memory is left to the C library")
        return False
    settings = (
        (_M_ARENA_MAX, _ARENAS),
        (_M_MMAP_THRESHOLD, _MAPPED_BYTES_MIN),
        (_M_TRIM_THRESHOLD, _KEPT_BYTES_MAX),
    )
    return all(mallopt(option, value) for option, value in settings)
