"""A bound on the memory for indexes and ranges of remote segments."""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import Final, Protocol, runtime_checkable

from millrace_broker.log.open_segments import OpenSegments, Releasable

CACHE_BYTES_MAX: Final = 2**27


@runtime_checkable
class Held(Releasable, Protocol):
    """An object that holds bytes in memory and can fetch them again."""

    def held_bytes(self) -> int:
        """Return the number of bytes in memory now."""
        ...


class RemoteCache(OpenSegments):
    """The remote segments with bytes in memory.

    Above ``bytes_max`` the least recently used segments are released. Active readers keep their bytes. Remote segments
    use this class in place of ``OpenSegments``, the bound on the open files of local segments.
    """

    def __init__(self, bytes_max: int = CACHE_BYTES_MAX) -> None:
        super().__init__()
        self._bytes_max = bytes_max
        self._guard: Final = threading.Lock()
        self._held: OrderedDict[Releasable, int] = OrderedDict()
        self._held_bytes = 0

    def __len__(self) -> int:
        return len(self._held)

    @property
    def held_bytes(self) -> int:
        """The held bytes as far as they were reported."""
        return self._held_bytes

    def opened(self, segment: Releasable) -> None:
        """Take note that a segment was used, and of its present size."""
        size_bytes = segment.held_bytes() if isinstance(segment, Held) else 0
        with self._guard:
            self._held_bytes += size_bytes - self._held.pop(segment, 0)
            self._held[segment] = size_bytes
        self._release_excess()

    def resize(self, bytes_max: int) -> None:
        """Set another bound, and release segments beyond it."""
        self._bytes_max = bytes_max
        self._release_excess()

    def _release_excess(self) -> None:
        """Release the least recently used segments. One that a reader uses counts as used now."""
        released = []
        with self._guard:
            while self._held_bytes > self._bytes_max and len(self._held) > 1:
                oldest, oldest_bytes = self._held.popitem(last=False)
                self._held_bytes -= oldest_bytes
                released.append((oldest, oldest_bytes))
        for oldest, oldest_bytes in released:
            if not oldest.try_release():
                with self._guard:
                    self._held_bytes += oldest_bytes - self._held.pop(oldest, 0)
                    self._held[oldest] = oldest_bytes

    def closed(self, segment: Releasable) -> None:
        """Take note that a segment has released its bytes."""
        with self._guard:
            self._held_bytes -= self._held.pop(segment, 0)
