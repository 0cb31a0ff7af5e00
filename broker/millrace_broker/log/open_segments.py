"""A bound on a broker's sealed segments with open files."""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import Final, Protocol

OPEN_SEGMENTS_MAX: Final = 500


class Releasable(Protocol):
    """An object that can release its files and reopen them when needed."""

    def try_release(self) -> bool:
        """Release the files unless some are just being opened; active readers keep theirs."""
        ...


class OpenSegments:
    """The segments with open files. With more than ``maximum``, the one opened first is released."""

    def __init__(self, maximum: int = OPEN_SEGMENTS_MAX) -> None:
        self._maximum: Final = maximum
        self._lock: Final = threading.Lock()
        self._open: OrderedDict[Releasable, None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._open)

    def opened(self, segment: Releasable) -> None:
        """Take note that a segment opened a file."""
        with self._lock:
            self._open[segment] = None
            released = [self._open.popitem(last=False)[0] for _ in range(len(self._open) - self._maximum)]
        for other in released:
            if not other.try_release():
                with self._lock:
                    self._open[other] = None

    def closed(self, segment: Releasable) -> None:
        """Take note that a segment has released its files, or no longer counts."""
        with self._lock:
            self._open.pop(segment, None)
