"""Limits on the freed memory that the C library keeps.

glibc gives each of many threads its own heap (arena) and returns little of it to the kernel. The threads of gRPC and of
the broker pass blocks of megabytes to each other. The same bytes then become resident in many arenas. Two arenas carry
the same traffic in two thirds of the memory, at the same speed.

Blocks of several megabytes are mapped and unmapped one by one. By default, glibc raises its mmap threshold once such a
block is freed, and keeps later blocks in its heaps. After a burst of large requests the process then stays as large as
it was. Ordinary batches are smaller and stay in the heaps, which is faster.
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
"""Memory that a heap keeps at its end.

Answers to consumers are nearly 4 MiB each. Several are in flight, each more than once in memory. With half of this
value, those blocks were returned to the kernel and cleared again for each answer. That cost a third of the broker's CPU
time.
"""


def keep_heaps_small() -> bool:
    """Limit the memory that glibc keeps. Call it before threads start. Return False without glibc."""
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        _logger.debug("mallopt is not available: the C library keeps its defaults")
        return False
    settings = (
        (_M_ARENA_MAX, _ARENAS),
        (_M_MMAP_THRESHOLD, _MAPPED_BYTES_MIN),
        (_M_TRIM_THRESHOLD, _KEPT_BYTES_MAX),
    )
    return all(mallopt(option, value) for option, value in settings)
