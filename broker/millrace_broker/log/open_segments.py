"""A bound on how many sealed segments have their files open, over all partitions of a broker."""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import Final, Protocol

OPEN_SEGMENTS_MAX: Final = 500


class Releasable(Protocol):
    """What can let go of its files and open them again when it needs them."""

    def try_release(self) -> bool:
        """Let go unless it is just opening something; readers in the middle of something keep what they have."""
        ...


class OpenSegments:
    """Lets go of the segment that was opened first when more than ``maximum`` are open."""

    def __init__(self, maximum: int = OPEN_SEGMENTS_MAX) -> None:
        self._maximum: Final = maximum
        self._lock: Final = threading.Lock()
        self._open: OrderedDict[Releasable, None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._open)

    def opened(self, segment: Releasable) -> None:
        """Note that a segment opened a file."""
        with self._lock:
            self._open[segment] = None
            released = [self._open.popitem(last=False)[0] for _ in range(len(self._open) - self._maximum)]
        for other in released:
            if not other.try_release():
                with self._lock:
                    self._open[other] = None

    def closed(self, segment: Releasable) -> None:
        """Note that a segment has let go by itself, or does not count any more."""
        with self._lock:
            self._open.pop(segment, None)
