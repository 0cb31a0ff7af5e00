"""Queue of offset commits, as a pure state machine.

Invariants:

- One commit is in flight at a time, and commits are sent in the order of the calls. Therefore committed offsets
  decrease only if the application commits lower ones. (Concurrent calls may be served in any order.)
- A synchronous commit is retried until its deadline. An asynchronous commit is sent once, because a retry could
  overwrite a later commit with older offsets.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from millrace.clients.backoff import exponential
from millrace.clients.model import ConsumerGroupMetadata, OffsetAndMetadata, TopicPartition
from millrace.errors import MillraceError, UnknownTopicOrPartitionError


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Commit:
    """Offsets to commit as a member of a generation. ``deadline`` ends the retries; ``None`` means no retry."""

    offsets: Mapping[TopicPartition, OffsetAndMetadata]
    who: ConsumerGroupMetadata
    deadline: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitQueue:
    """Waiting commits, and the one in flight."""

    waiting: tuple[Commit, ...] = ()
    under_way: Commit | None = None
    attempts: int = 0
    retry_at: float = 0.0
    backoff_s: float = 0.1
    backoff_max_s: float = 1.0

    @property
    def is_idle(self) -> bool:
        """True if no commit waits or is in flight."""
        return not self.waiting and self.under_way is None

    def submitted(self, commit: Commit) -> CommitQueue:
        """Return the queue with another commit."""
        return replace(self, waiting=(*self.waiting, commit))

    def request(self, now: float) -> tuple[CommitQueue, Commit | None]:
        """Return the commit to send now, if any."""
        if self.under_way is not None or not self.waiting or now < self.retry_at:
            return self, None
        first = self.waiting[0]
        return replace(self, waiting=self.waiting[1:], under_way=first), first

    def answered(self, error: MillraceError | None, now: float) -> tuple[CommitQueue, bool]:
        """Process the response to the commit in flight; returns whether the commit is finished.

        A missing topic is not retried although it might be created, because its offsets would be meaningless then.
        """
        commit = self.under_way
        assert commit is not None, "an answer to no request"
        may_pass = error is not None and error.retriable and not isinstance(error, UnknownTopicOrPartitionError)
        if may_pass and commit.deadline is not None:
            wait_s = exponential(self.backoff_s, self.backoff_max_s, self.attempts)
            if now + wait_s < commit.deadline:
                again = (commit, *self.waiting)
                state = replace(self, waiting=again, under_way=None, attempts=self.attempts + 1, retry_at=now + wait_s)
                return state, False
        return replace(self, under_way=None, attempts=0, retry_at=0.0), True

    def postponed(self, commit: Commit) -> CommitQueue:
        """Return the queue with a commit that was not sent first in line again."""
        if self.under_way is not commit:
            return self
        return replace(self, waiting=(commit, *self.waiting), under_way=None)

    def withdrawn(self, commit: Commit) -> CommitQueue:
        """Withdraw a commit whose caller stopped waiting, unless it is in flight."""
        return replace(self, waiting=tuple(each for each in self.waiting if each is not commit))


@dataclass(frozen=True, slots=True, kw_only=True)
class AutoCommit:
    """Timer of auto commits: at a poll, ``interval_s`` after the last commit."""

    interval_s: float
    due_at: float = 0.0

    def polled(self, now: float) -> tuple[AutoCommit, bool]:
        """Process a poll; returns whether to commit the returned records."""
        if now < self.due_at:
            return self, False
        return replace(self, due_at=now + self.interval_s), True

    def delayed(self, now: float) -> AutoCommit:
        """Restart the interval after a commit, or without offsets to commit."""
        return replace(self, due_at=now + self.interval_s)
