"""The choice of the log to clean (Kafka's ``LogCleanerManager``).

The choice depends only on figures of all logs.

A log is clean up to its *first dirty offset*, the last checkpoint. From there the log is cleanable up to the lowest of
these offsets:

- the base offset of the active segment;
- the last stable offset, because the outcome of open transactions is unknown;
- the base offset of the first segment with a record younger than ``min.compaction.lag.ms``.

Only whole segments are cleaned, so the segment with that offset is left out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

from millrace.config.topic import TopicConfig


class CandidateSegment(Protocol):
    """A segment's figures for the choice."""

    @property
    def base_offset(self) -> int:
        """The base offset of the segment."""

    @property
    def size_bytes(self) -> int:
        """The size of its batches."""

    def largest_time_ms(self) -> int:
        """Return the largest timestamp, or the time of the last write if there are no timestamps."""

    def first_time_ms(self) -> int:
        """Return the timestamp of the first batch, -1 for none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CleanableRange:
    """The cleanable part of one log, Kafka's ``LogToClean``.

    The bytes are those of whole segments. ``is_overdue`` means that a dirty record is older than
    ``max.compaction.lag.ms``. ``had_wrong_checkpoint`` means that the log does not have the offset of its checkpoint,
    so it counts as dirty from its start.
    """

    first_dirty_offset: int
    first_unstable_offset: int
    first_uncleanable_offset: int
    clean_bytes: int
    cleanable_bytes: int
    is_overdue: bool
    had_wrong_checkpoint: bool

    @property
    def ratio(self) -> float:
        """The dirty share of the log's cleanable and clean bytes."""
        total = self.clean_bytes + self.cleanable_bytes
        return self.cleanable_bytes / total if total else 0.0

    def is_worth_it(self, config: TopicConfig) -> bool:
        """Return whether the log should be cleaned now."""
        if not self.cleanable_bytes:
            return False
        return self.is_overdue or self.ratio > config.min_cleanable_dirty_ratio


def cleanable_range(
    segments: Sequence[CandidateSegment],
    *,
    config: TopicConfig,
    checkpoint: int | None,
    log_start_offset: int,
    log_end_offset: int,
    last_stable_offset: int,
    now_ms: int,
) -> CleanableRange:
    """Return the cleanable part; ``checkpoint`` is the offset up to which the log is clean, None if unknown."""
    first_dirty = log_start_offset if checkpoint is None else checkpoint
    is_wrong = not log_start_offset <= first_dirty <= log_end_offset
    if is_wrong:
        first_dirty = log_start_offset
    dirty = segments[_floor(segments, first_dirty) : -1]
    limits = [last_stable_offset, segments[-1].base_offset]
    if config.min_compaction_lag_ms > 0:
        youngest_ms = now_ms - config.min_compaction_lag_ms
        limits += [segment.base_offset for segment in dirty if segment.largest_time_ms() > youngest_ms][:1]
    first_unstable = max(first_dirty, min(limits))
    uncleanable = segments[min(_floor(segments, first_unstable), len(segments) - 1)].base_offset
    begins = segments[_floor(segments, min(first_dirty, uncleanable))].base_offset
    return CleanableRange(
        first_dirty_offset=first_dirty,
        first_unstable_offset=first_unstable,
        first_uncleanable_offset=uncleanable,
        clean_bytes=sum(segment.size_bytes for segment in segments if segment.base_offset < first_dirty),
        cleanable_bytes=sum(segment.size_bytes for segment in segments if begins <= segment.base_offset < uncleanable),
        is_overdue=_is_overdue(dirty, config, now_ms),
        had_wrong_checkpoint=is_wrong,
    )


def _is_overdue(dirty: Sequence[CandidateSegment], config: TopicConfig, now_ms: int) -> bool:
    clean_until_ms = now_ms - config.max_compaction_lag_ms
    return clean_until_ms > 0 and any(0 < segment.first_time_ms() < clean_until_ms for segment in dirty)


def _floor(segments: Sequence[CandidateSegment], offset: int) -> int:
    """Return the number of the last segment that begins at or before ``offset``, else 0."""
    return max((number for number, segment in enumerate(segments) if segment.base_offset <= offset), default=0)


Key = TypeVar("Key")


def dirtiest(candidates: Sequence[tuple[Key, CleanableRange, TopicConfig]]) -> tuple[Key, CleanableRange] | None:
    """Return the next log to clean: of those worth it, the one with the largest dirty share."""
    worth_it = [(key, found) for key, found, config in candidates if found.is_worth_it(config)]
    return max(worth_it, key=lambda candidate: candidate[1].ratio, default=None)
