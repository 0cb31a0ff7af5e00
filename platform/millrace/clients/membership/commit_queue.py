"""Offsets on their way to the coordinator, as a pure state machine.

Invariants:

- One commit is under way at a time, and they are made in the order in which they were asked for: so what is committed
  never goes back but by the application's own wish. (Two calls at once may be served in any order.)
- A synchronous commit is repeated until its time is up; an asynchronous one is made once, for what would come of
  repeating it is older by then than what was asked for meanwhile.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from millrace.clients.model import ConsumerGroupMetadata, OffsetAndMetadata, TopicPartition
from millrace.errors import MillraceError, UnknownTopicOrPartitionError


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Commit:
    """Offsets to commit as a member of a generation. ``deadline`` is when repeating ends; ``None``: never repeated."""

    offsets: Mapping[TopicPartition, OffsetAndMetadata]
    who: ConsumerGroupMetadata
    deadline: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitQueue:
    """Commits that wait, and the one that is under way."""

    waiting: tuple[Commit, ...] = ()
    under_way: Commit | None = None
    attempts: int = 0
    retry_at: float = 0.0
    backoff_s: float = 0.1
    backoff_max_s: float = 1.0

    @property
    def is_idle(self) -> bool:
        """Whether nothing waits and nothing is under way."""
        return not self.waiting and self.under_way is None

    def submitted(self, commit: Commit) -> CommitQueue:
        """A commit was asked for."""
        return replace(self, waiting=(*self.waiting, commit))

    def request(self, now: float) -> tuple[CommitQueue, Commit | None]:
        """The commit to make now, if any."""
        if self.under_way is not None or not self.waiting or now < self.retry_at:
            return self, None
        first = self.waiting[0]
        return replace(self, waiting=self.waiting[1:], under_way=first), first

    def answered(self, error: MillraceError | None, now: float) -> tuple[CommitQueue, bool]:
        """The commit under way was answered; whether that is the end of it.

        A topic that is not there is not waited for, though it might come: offsets of it are worth nothing then.
        """
        commit = self.under_way
        assert commit is not None, "an answer to no request"
        may_pass = error is not None and error.retriable and not isinstance(error, UnknownTopicOrPartitionError)
        if may_pass and commit.deadline is not None:
            wait_s = min(self.backoff_s * (1 << min(self.attempts, 30)), self.backoff_max_s)
            if now + wait_s < commit.deadline:
                again = (commit, *self.waiting)
                state = replace(self, waiting=again, under_way=None, attempts=self.attempts + 1, retry_at=now + wait_s)
                return state, False
        return replace(self, under_way=None, attempts=0, retry_at=0.0), True

    def withdrawn(self, commit: Commit) -> CommitQueue:
        """The one that asked for a commit waits no longer: it is not made, unless it is under way."""
        return replace(self, waiting=tuple(each for each in self.waiting if each is not commit))


@dataclass(frozen=True, slots=True, kw_only=True)
class AutoCommit:
    """When offsets are committed by themselves: at a poll, ``interval_s`` after the last time."""

    interval_s: float
    due_at: float = 0.0

    def polled(self, now: float) -> tuple[AutoCommit, bool]:
        """The caller polls; whether to commit what it has had."""
        if now < self.due_at:
            return self, False
        return replace(self, due_at=now + self.interval_s), True

    def delayed(self, now: float) -> AutoCommit:
        """Offsets were committed, or nothing was there to commit: count from now."""
        return replace(self, due_at=now + self.interval_s)
