"""The segments of a log, Kafka's ``LogSegments``.

Invariants:

- The segments are sorted by base offset, and at least one exists. Appends go to the last one, the *active* segment.
- The tuple ``current`` is replaced, never changed, so that readers need no lock. The caller of a mutator holds the
  partition's lock.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from operator import attrgetter
from typing import Final

from millrace_broker.log.segment import Segment

_BASE_OFFSET: Final = attrgetter("base_offset")


def floor(segments: Sequence[Segment], offset: int) -> int:
    """Return the number of the last segment that begins at or before ``offset``, else 0."""
    return max(bisect_right(segments, offset, key=_BASE_OFFSET) - 1, 0)


class SegmentList:
    """The segments of one log, oldest first."""

    __slots__ = ("current",)

    def __init__(self, segments: Sequence[Segment]) -> None:
        self.current: tuple[Segment, ...] = tuple(segments)
        """The present segments."""
        bases = [segment.base_offset for segment in segments]
        assert bases, "a log has a segment"
        assert bases == sorted(set(bases)), bases

    def append(self, segment: Segment) -> None:
        """Add a new active segment."""
        assert segment.base_offset > self.current[-1].base_offset, segment.path
        self.current = (*self.current, segment)

    def drop_first(self, count: int) -> tuple[Segment, ...]:
        """Remove the oldest ``count`` segments, which are returned. The active segment stays."""
        assert 0 <= count < len(self.current), count
        dropped, self.current = self.current[:count], self.current[count:]
        return dropped

    def drop_after(self, kept: int) -> tuple[Segment, ...]:
        """Remove all segments after the first ``kept``; returns the removed ones."""
        assert kept > 0, kept
        dropped, self.current = self.current[kept:], self.current[:kept]
        return dropped

    def replace(self, replaced: Sequence[Segment], successor: Segment) -> None:
        """Replace consecutive segments by one."""
        first = self.current.index(replaced[0])
        following = first + len(replaced)
        before, after = self.current[:first], self.current[following:]
        assert self.current[first:following] == tuple(replaced), successor.path
        assert not before or before[-1].base_offset < successor.base_offset, successor.path
        assert not after or successor.base_offset < after[0].base_offset, successor.path
        self.current = (*before, successor, *after)

    def reopen(self, segments: Sequence[Segment]) -> None:
        """Replace all segments by others with the same content."""
        assert [(each.base_offset, each.size_bytes) for each in segments] == [
            (each.base_offset, each.size_bytes) for each in self.current
        ], segments
        self.current = tuple(segments)

    def restart(self, segment: Segment) -> None:
        """Let the log consist of one segment."""
        self.current = (segment,)
