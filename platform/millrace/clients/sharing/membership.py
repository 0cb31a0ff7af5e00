"""Share group membership as a pure state machine with heartbeats only."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from millrace.clients.model import TopicPartition
from millrace.errors import FencedMemberEpochError, MillraceError, UnknownMemberError

JOINING: Final = 0
_FIRST_INTERVAL_S: Final = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Beat:
    """A heartbeat; ``topics`` are sent first and after changes."""

    epoch: int
    topics: frozenset[str] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ShareMembership:
    """A member, which chose its own id. ``epoch`` 0 means that it is not in the group."""

    member_id: str
    topics: frozenset[str] = frozenset()
    told_topics: frozenset[str] | None = None
    epoch: int = JOINING
    assigned: frozenset[TopicPartition] = frozenset()
    due_at: float = 0.0
    attempts: int = 0
    failure: MillraceError | None = None

    def subscribed(self, topics: frozenset[str], now: float) -> ShareMembership:
        """Return the state with these topics, which the next heartbeat sends at once."""
        return replace(self, topics=topics, due_at=min(self.due_at, now))

    def request(self, now: float) -> Beat | None:
        """Return the heartbeat that is due, if any."""
        if now < self.due_at or not self.topics or self.failure is not None:
            return None
        is_news = self.epoch == JOINING or self.topics != self.told_topics
        return Beat(epoch=self.epoch, topics=self.topics if is_news else None)

    def answered(
        self, beat: Beat, epoch: int, assigned: frozenset[TopicPartition] | None, interval_s: float, now: float
    ) -> ShareMembership:
        """Process a heartbeat response; ``assigned`` is ``None`` if unchanged."""
        told = self.told_topics if beat.topics is None else beat.topics
        return replace(
            self,
            epoch=epoch,
            assigned=self.assigned if assigned is None else assigned,
            told_topics=told,
            due_at=now if told != self.topics else now + (interval_s or _FIRST_INTERVAL_S),
            attempts=0,
        )

    def failed(self, error: MillraceError, backoff_s: float, now: float) -> ShareMembership:
        """Process a heartbeat error. A member that the group does not know joins again, with the same id."""
        if isinstance(error, (UnknownMemberError, FencedMemberEpochError)):
            return replace(self, epoch=JOINING, assigned=frozenset(), due_at=now, attempts=self.attempts + 1)
        if not error.retriable:
            return replace(self, failure=error)
        return replace(self, due_at=now + backoff_s, attempts=self.attempts + 1)

    def took_failure(self) -> ShareMembership:
        """Return the state after the failure was raised; the next poll retries."""
        return replace(self, failure=None)
