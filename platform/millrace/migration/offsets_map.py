"""Map from old to new offsets, as runs of consecutive offsets.

Kafka's offsets have gaps from compaction and transaction markers, and the new offsets have gaps from the copy's
transaction markers. So a constant difference is not enough; a run ends at a gap in either.

Invariants of ``OffsetsMap``: runs ascend in old and in new offsets, without overlap. Every record before ``next_old``
that Kafka still had is in a run, and no later record is.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from millrace.errors import UsageError


class Run(NamedTuple):
    """Run of ``length`` consecutive records.

    The first record has offset ``old`` in Kafka and ``new`` in millrace.
    """

    old: int
    new: int
    length: int


@dataclass(frozen=True, slots=True)
class OffsetsMap:
    """Map of one partition. ``next_old`` is the next offset to copy; ``None`` before the first read."""

    runs: tuple[Run, ...] = ()
    next_old: int | None = None

    def extended(self, runs: Sequence[Run], next_old: int) -> OffsetsMap:
        """Return the map with newly copied runs. Raises ``ValueError`` if they do not follow it."""
        if self.next_old is not None and next_old < self.next_old:
            raise ValueError(f"the copy cannot go back from offset {self.next_old} to {next_old}")
        joined = [self.runs[-1]] if self.runs else []
        for run in runs:
            if not joined:
                joined.append(run)
                continue
            last = joined[-1]
            if run.old < last.old + last.length or run.new < last.new + last.length or run.old >= next_old:
                raise ValueError(f"{run} does not follow {last} before {next_old}")
            if (run.old, run.new) == (last.old + last.length, last.new + last.length):
                joined[-1] = Run(last.old, last.new, last.length + run.length)
            else:
                joined.append(run)
        return OffsetsMap((*self.runs[:-1], *joined), next_old)

    @property
    def end(self) -> int:
        """New offset after the last copied record."""
        return self.runs[-1].new + self.runs[-1].length if self.runs else 0

    def new_offset(self, old: int) -> int:
        """Return the new offset for a reader that would continue at ``old`` in Kafka.

        That is the first copied record at ``old`` or after it, or the end. Raises ``UsageError`` for an offset that
        is not copied yet.
        """
        if old > (self.next_old or 0):
            raise UsageError(f"offset {old} is not copied yet: the copy ends before offset {self.next_old or 0}")
        number = bisect_right(self.runs, old, key=lambda run: run.old) - 1
        if number >= 0 and old < self.runs[number].old + self.runs[number].length:
            return self.runs[number].new + old - self.runs[number].old
        return self.runs[number + 1].new if number + 1 < len(self.runs) else self.end


def runs_of(places: Iterable[tuple[int, int]]) -> list[Run]:
    """Return the runs of (old, new) offsets of records in order."""
    runs: list[Run] = []
    for old, new in places:
        if runs and (old, new) == (runs[-1].old + runs[-1].length, runs[-1].new + runs[-1].length):
            runs[-1] = runs[-1]._replace(length=runs[-1].length + 1)
        else:
            runs.append(Run(old, new, 1))
    return runs
