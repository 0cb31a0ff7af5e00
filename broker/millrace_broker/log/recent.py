"""The end of a log that was written a moment ago: reading it waits for no disk, for it is in the page cache."""

from __future__ import annotations

from typing import Final, NamedTuple

_BYTES_MAX: Final = 1024 * 1024
_AGE_MAX_S: Final = 10.0
"""After that the kernel may have put the pages to another use."""


class RecentEnd(NamedTuple):
    """What was appended from ``start_offset`` on: ``size_bytes`` of batches, the first of them at ``since_s``."""

    start_offset: int
    size_bytes: int
    since_s: float

    def grown(self, base_offset: int, size_bytes: int, now_s: float) -> RecentEnd:
        """After an append, which is all there is of it when it would be too much or too old with what was before."""
        if self.size_bytes + size_bytes > _BYTES_MAX or now_s - self.since_s > _AGE_MAX_S:
            return RecentEnd(base_offset, size_bytes, now_s)
        return RecentEnd(self.start_offset, self.size_bytes + size_bytes, self.since_s)

    def holds(self, offset: int, now_s: float) -> bool:
        """Whether all from an offset to the end of the log is small and in memory."""
        return offset >= self.start_offset and self.size_bytes <= _BYTES_MAX and now_s - self.since_s <= _AGE_MAX_S


NOTHING_RECENT: Final = RecentEnd(2**63 - 1, 0, float("-inf"))
"""Nothing was appended since the log was loaded."""
