"""What a follower asks of its leader and does with the answers. Pure: effects are carried out before the next call.

Invariants:

* it fetches from the end of its own log and names the epoch of the record before it, so that no record is appended
  after one that the leader does not have
* an answer to anything but its last question at this leader epoch changes nothing
* its high watermark is never beyond its log's end

Source: Kafka's ``AbstractFetcherThread`` and ``ReplicaFetcherThread``; KIP-101, KIP-279, KIP-320, KIP-595.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Final

from millrace.errors import (
    FencedLeaderEpochError,
    MillraceError,
    NotLeaderError,
    OffsetOutOfRangeError,
    UnknownLeaderEpochError,
)
from millrace_broker.decisions import PartitionDecision
from millrace_broker.replication.core.model import EpochEnd, LogView, ReplicationSettings
from millrace_broker.replication.core.truncation import truncation_point

_SOON_MS: Final = 50
_SOON_MAX: Final = 20
"""A leader that is about to be told that it leads is asked so often, so soon: producers wait for this replica."""


class Stage(enum.Enum):
    """What a follower is about."""

    FETCHING = "fetching"
    COMPARING = "comparing"
    """Asks where the epoch of its last record ends, of leaders that do not tell at a fetch."""
    OUT_OF_RANGE = "out of range"
    """Asks where the leader's log begins and ends."""
    WAITING = "waiting"
    """Has no leader, or an old one: the controller has the next word."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchFrom:
    """Fetch records; ``last_epoch`` is that of the record before, None where epochs are not known."""

    leader_epoch: int
    offset: int
    last_epoch: int | None
    log_start_offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AskEpochEnd:
    """Ask where an epoch ends (OffsetsForLeaderEpoch)."""

    leader_epoch: int
    epoch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AskLogBounds:
    """Ask where the leader's log begins and ends (ListOffsets)."""

    leader_epoch: int


Question = FetchFrom | AskEpochEnd | AskLogBounds


@dataclass(frozen=True, slots=True)
class Truncate:
    """Let the log end at this offset and forget the epochs that begin there or later, also where it ends there."""

    offset: int


@dataclass(frozen=True, slots=True)
class StartAt:
    """Drop the whole log; it begins, empty, at this offset."""

    offset: int


@dataclass(frozen=True, slots=True)
class Append:
    """Append the records of the answer as they are; they end before this offset."""

    end_offset: int


@dataclass(frozen=True, slots=True)
class RaiseLogStart:
    """The leader has deleted what is before this offset."""

    offset: int


Effect = Truncate | StartAt | Append | RaiseLogStart


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchedRecords:
    """A leader's answer to ``FetchFrom``. ``end_offset`` is where the records end, the fetch offset if there are none.

    With ``diverging`` there are none: the leader's log does not agree with the question.
    """

    end_offset: int
    high_watermark: int
    log_start_offset: int = 0
    diverging: EpochEnd | None = None


class Follower:
    """The follower's side of a partition at one leader epoch."""

    def __init__(
        self, decision: PartitionDecision, log: LogView, settings: ReplicationSettings, high_watermark: int
    ) -> None:
        self.leader = decision.leader
        self.epoch = decision.leader_epoch
        self._log = log
        self._settings = settings
        self._high_watermark = min(high_watermark, log.log_end_offset)
        self._stage = Stage.FETCHING if decision.leader >= 0 else Stage.WAITING
        self._asked_again_ms = 0
        self._soon_left = _SOON_MAX
        self._committed_to: int | None = None
        """The watermark that this leader has told last."""
        if self._stage is Stage.FETCHING and log.epochs.latest is not None and not settings.does_truncate_on_fetch:
            self._stage = Stage.COMPARING

    @property
    def stage(self) -> Stage:
        """What it is about."""
        return self._stage

    @property
    def high_watermark(self) -> int:
        """What it knows to be on all replicas in sync, from this leader or an earlier one; truncation takes it back."""
        return self._high_watermark

    @property
    def has_caught_up(self) -> bool:
        """Whether it has all that is committed, as far as its leader has told: it is in sync, or is about to be."""
        return self._committed_to is not None and self._log.log_end_offset >= self._committed_to

    @property
    def asked_again_ms(self) -> int:
        """When it asks again after a failure."""
        return self._asked_again_ms

    def begin(self) -> tuple[Effect, ...]:
        """What to do before the first question: without epochs, only what is before the watermark is sure."""
        if self._stage is Stage.FETCHING and self._log.epochs.latest is None:
            return self._truncated(self._high_watermark)
        return ()

    def question(self, now_ms: int) -> Question | None:
        """What to ask the leader now; None while it backs off or waits for the controller."""
        if now_ms < self._asked_again_ms:
            return None
        log, latest = self._log, self._log.epochs.latest
        match self._stage:
            case Stage.FETCHING:
                return FetchFrom(
                    leader_epoch=self.epoch,
                    offset=log.log_end_offset,
                    last_epoch=latest if self._settings.does_truncate_on_fetch else None,
                    log_start_offset=log.log_start_offset,
                )
            case Stage.COMPARING if latest is not None:
                return AskEpochEnd(leader_epoch=self.epoch, epoch=latest)
            case Stage.OUT_OF_RANGE:
                return AskLogBounds(leader_epoch=self.epoch)
            case _:
                return None

    def fetched(self, question: FetchFrom, answer: FetchedRecords) -> tuple[Effect, ...]:
        """Records have come, or where the logs part."""
        if not self._is_current(question) or question.offset != self._log.log_end_offset:
            return ()
        if answer.diverging is not None:
            return self._truncated(truncation_point(self._log, self._high_watermark, answer.diverging).offset)
        effects: list[Effect] = []
        if answer.end_offset > question.offset:
            effects.append(Append(answer.end_offset))
        self._committed_to = answer.high_watermark
        # A leader that has just been elected may know of less: what was known to be committed stays so.
        self._high_watermark = max(self._high_watermark, min(answer.high_watermark, answer.end_offset))
        if self._log.log_start_offset < answer.log_start_offset <= self._high_watermark:
            effects.append(RaiseLogStart(answer.log_start_offset))
        return tuple(effects)

    def compared(self, question: AskEpochEnd, answer: EpochEnd | None) -> tuple[Effect, ...]:
        """The leader has told where an epoch ends; None: it knows none so old or new."""
        if not self._is_current(question) or self._stage is not Stage.COMPARING:
            return ()
        point = truncation_point(self._log, self._high_watermark, answer)
        is_older_known = any(start < point.offset for _, start in self._log.epochs.entries)
        if point.is_final or not is_older_known:
            self._stage = Stage.FETCHING
        return self._truncated(point.offset)

    def bounded(self, question: AskLogBounds, leader_start: int, leader_end: int) -> tuple[Effect, ...]:
        """The leader's log begins and ends there: go back to its end, or begin anew at its start."""
        if not self._is_current(question) or self._stage is not Stage.OUT_OF_RANGE:
            return ()
        self._stage = Stage.FETCHING
        log = self._log
        if leader_start > log.log_end_offset or leader_end < log.log_start_offset:
            self._high_watermark = leader_start
            return (StartAt(leader_start),)
        return self._truncated(min(leader_end, log.log_end_offset))

    def failed(self, question: Question, error: MillraceError, now_ms: int) -> None:
        """A question was refused, or not answered: ask something else, wait for the controller, or ask again later."""
        if not self._is_current(question):
            return
        if isinstance(error, FencedLeaderEpochError):
            self._stage = Stage.WAITING
        elif isinstance(error, OffsetOutOfRangeError) and self._stage is Stage.FETCHING:
            self._stage = Stage.OUT_OF_RANGE
        else:
            backoff_ms = self._settings.replica_fetch_backoff_ms
            if isinstance(error, UnknownLeaderEpochError | NotLeaderError) and self._soon_left > 0:
                self._soon_left -= 1
                backoff_ms = min(_SOON_MS, backoff_ms)
            self._asked_again_ms = now_ms + backoff_ms

    def _is_current(self, question: Question) -> bool:
        return question.leader_epoch == self.epoch and self._stage is not Stage.WAITING

    def _truncated(self, offset: int) -> tuple[Effect, ...]:
        self._high_watermark = min(self._high_watermark, offset)
        # An epoch may begin at the log's end: of a leader that has written nothing in it. It has to go as well, or it
        # would be named in every fetch, and refused for ever.
        begins_there = any(start >= offset for _, start in self._log.epochs.entries)
        return (Truncate(offset),) if offset < self._log.log_end_offset or begins_there else ()
