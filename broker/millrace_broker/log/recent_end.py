"""The recently appended end of a log, read from the page cache."""

from __future__ import annotations

from typing import Final, NamedTuple

_BYTES_MAX: Final = 1024 * 1024
_AGE_MAX_S: Final = 10.0
"""The age after which the kernel may have reused the pages."""


class RecentEnd(NamedTuple):
    """The records from ``start_offset`` to the log end.

    The first of their batches was appended at ``since_s`` (monotonic). All of them have ``size_bytes``.
    """

    start_offset: int
    size_bytes: int
    since_s: float

    def grown(self, base_offset: int, size_bytes: int, now_s: float) -> RecentEnd:
        """Return the recent end after an append; only that append if the sum is too large or too old."""
        if self.size_bytes + size_bytes > _BYTES_MAX or now_s - self.since_s > _AGE_MAX_S:
            return RecentEnd(base_offset, size_bytes, now_s)
        return RecentEnd(self.start_offset, self.size_bytes + size_bytes, self.since_s)

    def holds(self, offset: int, now_s: float) -> bool:
        """Return whether all records from an offset to the log end are few and in memory."""
        return offset >= self.start_offset and self.size_bytes <= _BYTES_MAX and now_s - self.since_s <= _AGE_MAX_S


NOTHING_RECENT: Final = RecentEnd(2**63 - 1, 0, float("-inf"))
"""No append since the log was loaded."""
