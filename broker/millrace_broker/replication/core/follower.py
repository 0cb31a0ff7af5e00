"""The follower's side of a partition, Kafka's ``AbstractFetcherThread`` per partition.

It decides on the next request to the leader and on the effects of each answer. The code is pure; the caller carries
effects out before the next call.

Invariants:

* The follower fetches from the end of its own log and names the epoch of the record before that offset. So it appends
  no record after a record that the leader does not have.
* Only an answer to the last request, at this leader epoch, has an effect.
* The high watermark is never beyond the log end offset.

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
"""The number of early retries when a broker does not lead yet; the delay of each is ``_SOON_MS``.

The controller is about to make that broker the leader, and producers wait for this replica.
"""


class Stage(enum.Enum):
    """The stages of a follower."""

    FETCHING = "fetching"
    COMPARING = "comparing"
    """The follower asks where the epoch of its last record ends. The leader does not report divergence in a fetch."""
    OUT_OF_RANGE = "out of range"
    """The follower asks where the leader's log begins and ends."""
    WAITING = "waiting"
    """The follower has no leader, or the leader of an old epoch, and waits for the controller's decision."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchFrom:
    """A request for records.

    ``last_epoch`` is the epoch of the record before ``offset``; None where epochs are unknown.
    """

    leader_epoch: int
    offset: int
    last_epoch: int | None
    log_start_offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AskEpochEnd:
    """A request for the end of an epoch (OffsetsForLeaderEpoch)."""

    leader_epoch: int
    epoch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AskLogBounds:
    """A request for the bounds of the leader's log (ListOffsets)."""

    leader_epoch: int


Question = FetchFrom | AskEpochEnd | AskLogBounds


@dataclass(frozen=True, slots=True)
class Truncate:
    """A truncation of the log to this offset.

    The truncation also removes the leader epochs that begin at this offset or later. An epoch that begins at the log
    end offset is removed too.
    """

    offset: int


@dataclass(frozen=True, slots=True)
class StartAt:
    """A deletion of the whole log.

    The empty log starts at this offset.
    """

    offset: int


@dataclass(frozen=True, slots=True)
class Append:
    """An append of the answer's records, unchanged; they end before this offset."""

    end_offset: int


@dataclass(frozen=True, slots=True)
class RaiseLogStart:
    """A higher log start offset.

    The leader has deleted the records before this offset.
    """

    offset: int


Effect = Truncate | StartAt | Append | RaiseLogStart


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchedRecords:
    """A leader's answer to ``FetchFrom``.

    ``end_offset`` is where the records end; without records it is the fetch offset. With ``diverging`` there are no
    records, because the leader's log does not agree with the epoch and offset of the request.
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
        """The high watermark in the leader's last answer."""
        if self._stage is Stage.FETCHING and log.epochs.latest is not None and not settings.does_truncate_on_fetch:
            self._stage = Stage.COMPARING

    @property
    def stage(self) -> Stage:
        """The present stage."""
        return self._stage

    @property
    def high_watermark(self) -> int:
        """The offset before which records are on all replicas in sync, from this leader or an earlier one.

        A truncation lowers it.
        """
        return self._high_watermark

    @property
    def has_caught_up(self) -> bool:
        """True if the log reaches the high watermark that the leader reported last.

        Such a follower is in the ISR, or joins it soon.
        """
        return self._committed_to is not None and self._log.log_end_offset >= self._committed_to

    @property
    def asked_again_ms(self) -> int:
        """The time of the next request after a failure, in ms."""
        return self._asked_again_ms

    def begin(self) -> tuple[Effect, ...]:
        """Return the effects that precede the first request.

        Without leader epochs only the records before the high watermark are certain to be the leader's.
        """
        if self._stage is Stage.FETCHING and self._log.epochs.latest is None:
            return self._truncated(self._high_watermark)
        return ()

    def question(self, now_ms: int) -> Question | None:
        """Return the next request to the leader.

        Returns None during a backoff, or while the follower waits for the controller.
        """
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
        """Return the effects of a fetch answer: appended records, or truncation where the logs diverge."""
        if not self._is_current(question) or question.offset != self._log.log_end_offset:
            return ()
        if answer.diverging is not None:
            return self._truncated(truncation_point(self._log, self._high_watermark, answer.diverging).offset)
        effects: list[Effect] = []
        if answer.end_offset > question.offset:
            effects.append(Append(answer.end_offset))
        self._committed_to = answer.high_watermark
        # A newly elected leader may know a lower high watermark. Records that were committed stay committed.
        self._high_watermark = max(self._high_watermark, min(answer.high_watermark, answer.end_offset))
        if self._log.log_start_offset < answer.log_start_offset <= self._high_watermark:
            effects.append(RaiseLogStart(answer.log_start_offset))
        return tuple(effects)

    def compared(self, question: AskEpochEnd, answer: EpochEnd | None) -> tuple[Effect, ...]:
        """Return the effects of an answer about the end of an epoch.

        ``answer`` is None if the leader knows no epoch that old or that new.
        """
        if not self._is_current(question) or self._stage is not Stage.COMPARING:
            return ()
        point = truncation_point(self._log, self._high_watermark, answer)
        is_older_known = any(start < point.offset for _, start in self._log.epochs.entries)
        if point.is_final or not is_older_known:
            self._stage = Stage.FETCHING
        return self._truncated(point.offset)

    def bounded(self, question: AskLogBounds, leader_start: int, leader_end: int) -> tuple[Effect, ...]:
        """Return the effects of the leader's log bounds: truncate to the leader's end, or start again at its start."""
        if not self._is_current(question) or self._stage is not Stage.OUT_OF_RANGE:
            return ()
        self._stage = Stage.FETCHING
        log = self._log
        if leader_start > log.log_end_offset or leader_end < log.log_start_offset:
            self._high_watermark = leader_start
            return (StartAt(leader_start),)
        return self._truncated(min(leader_end, log.log_end_offset))

    def failed(self, question: Question, error: MillraceError, now_ms: int) -> None:
        """Take note that a request was refused or not answered.

        The follower then sends another kind of request, waits for the controller, or retries after a backoff.
        """
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
        # A leader may have begun an epoch at the log end without writing records in it. The follower must forget this
        # epoch as well. Otherwise every fetch would name it, and the leader would refuse every fetch.
        begins_there = any(start >= offset for _, start in self._log.epochs.entries)
        return (Truncate(offset),) if offset < self._log.log_end_offset or begins_there else ()
