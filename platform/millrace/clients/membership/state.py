"""Member of a group as a pure state machine.

Events with their time go in; a new state and actions come out. Two parties drive it. The caller's thread polls: it
revokes partitions before a rebalance and takes new ones after it, because it calls the listeners. A background thread
makes the requests, one at a time: ``request`` returns the next one, and its response becomes an event.

Invariants:

- Owned partitions belong to one generation. ``owned`` is one of these: empty; the result of the last sync of
  ``generation``; the remainder of that while a cooperative member joins again; or lost partitions that the caller has
  not revoked yet. In the last case ``generation`` is -1, and commits are impossible.
- No join is sent before the caller has revoked what must be revoked: only ``prepared`` ends PREPARING.
- The generation never decreases except to -1; responses to requests of another generation or member are ignored.
- A member that exceeds ``max.poll.interval.ms`` leaves, and joins again only when it is polled.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final

from millrace.clients.backoff import exponential
from millrace.clients.membership.requests import Changed, Heartbeat, Join, Joined, Leave, Prepare, Request, Sync
from millrace.clients.model import TopicPartition
from millrace.errors import (
    FencedInstanceIdError,
    IllegalGenerationError,
    MemberIdRequiredError,
    MillraceError,
    RebalanceInProgressError,
    UnknownMemberError,
)

NO_GENERATION: Final = -1
_NEVER: Final = float("inf")


class Phase(StrEnum):
    """Phase of a member in a rebalance."""

    UNJOINED = "unjoined"
    PREPARING = "preparing"
    JOINING = "joining"
    SYNCING = "syncing"
    STABLE = "stable"


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """Timeouts of a member in seconds. ``jitter`` (0.8 to 1.2) prevents synchronized retries of members."""

    session_timeout_s: float = 45.0
    heartbeat_interval_s: float = 3.0
    max_poll_interval_s: float = 300.0
    retry_backoff_s: float = 0.1
    retry_backoff_max_s: float = 1.0
    jitter: float = 1.0

    def backoff_s(self, attempt: int) -> float:
        """Return the wait before retry number ``attempt``, from 0."""
        return exponential(self.retry_backoff_s, self.retry_backoff_max_s, attempt) * self.jitter


@dataclass(frozen=True, slots=True, kw_only=True)
class Membership:
    """State of a member; each event method returns the next state."""

    timing: Timing
    is_cooperative: bool = False
    instance_id: str = ""
    phase: Phase = Phase.UNJOINED
    topics: frozenset[str] = frozenset()
    member_id: str = ""
    generation: int = NO_GENERATION
    protocol: str = ""
    owned: frozenset[TopicPartition] = frozenset()
    rejoin: str = ""
    reason: str = "first join"
    joined: Joined | None = None
    changed: Changed | None = None
    failure: MillraceError | None = None
    polled_at: float = 0.0
    heartbeat_due: float = _NEVER
    heard_at: float = 0.0
    attempts: int = 0
    retry_at: float = 0.0

    # --- the caller's thread --------------------------------------------------------------------------------------

    @property
    def is_rebalancing(self) -> bool:
        """True if the member is joining, or should join, another generation."""
        return self.phase is not Phase.STABLE or bool(self.rejoin)

    @property
    def has_group(self) -> bool:
        """True if the member is in a generation."""
        return self.generation != NO_GENERATION

    @property
    def can_commit(self) -> bool:
        """True if the group accepts this member's commits, unless a generation unknown to the member has begun."""
        return self.has_group and self.phase in (Phase.STABLE, Phase.PREPARING)

    def subscribed(self, topics: frozenset[str]) -> Membership:
        """Return the state with other topics; a member of a group must rejoin."""
        if topics == self.topics:
            return self
        return replace(self, topics=topics).asked_to_rejoin("the subscription has changed")

    def asked_to_rejoin(self, reason: str) -> Membership:
        """Return the state that joins again at the next poll."""
        return replace(self, rejoin=self.rejoin or reason)

    def polled(self, now: float) -> tuple[Membership, Prepare | None]:
        """Process a poll. The caller must do the returned work and call ``prepared`` before the member joins."""
        state = replace(self, polled_at=now)
        if isinstance(self.failure, FencedInstanceIdError):
            return state, None
        if state.phase is Phase.UNJOINED or (state.phase is Phase.STABLE and state.rejoin):
            state = replace(state, phase=Phase.PREPARING)
        if state.phase is not Phase.PREPARING:
            return state, None
        prepare = state._to_give_up()
        if prepare.revoked or prepare.lost:
            return state, prepare
        return state.prepared(prepare), None

    def _to_give_up(self) -> Prepare:
        if self.generation == NO_GENERATION:
            return Prepare(lost=self.owned)
        if not self.is_cooperative:
            return Prepare(revoked=self.owned)
        return Prepare(revoked=frozenset(partition for partition in self.owned if partition.topic not in self.topics))

    def prepared(self, done: Prepare) -> Membership:
        """Process revoked partitions; if the others were lost meanwhile, they must be dropped first."""
        state = replace(self, owned=self.owned - done.revoked - done.lost)
        if state.generation == NO_GENERATION and state.owned:
            return state
        return replace(state, phase=Phase.JOINING, attempts=0, retry_at=0.0)

    def took_changes(self) -> Membership:
        """Return the state after the caller has processed ``changed``."""
        return replace(self, changed=None)

    def took_failure(self) -> Membership:
        """Return the state after the failure was raised; the next poll retries unless the instance id was fenced."""
        return self if isinstance(self.failure, FencedInstanceIdError) else replace(self, failure=None)

    def left(self) -> Membership:
        """Return the state without membership and partitions."""
        return replace(
            self._forgotten("joined again"), phase=Phase.UNJOINED, owned=frozenset(), changed=None, failure=None
        )

    # --- requests -------------------------------------------------------------------------------------------------

    def request(self, now: float) -> tuple[Membership, Request | None]:
        """Return the request that is due now, if any."""
        if self.phase in (Phase.STABLE, Phase.PREPARING) and self.has_group:
            if now - self.polled_at > self.timing.max_poll_interval_s:
                return self._silent()
            if now >= self.heartbeat_due:
                state = replace(self, heartbeat_due=now + self.timing.heartbeat_interval_s)
                return state, Heartbeat(member_id=self.member_id, generation=self.generation)
        if now < self.retry_at or self.failure is not None:
            return self, None
        if self.phase is Phase.JOINING:
            # A rebalance reason that comes after this point is not in this request.
            state = replace(self, rejoin="", reason=self.rejoin or self.reason)
            return state, Join(
                member_id=self.member_id,
                generation=self.generation,
                owned=self.owned,
                topics=self.topics,
                reason=state.reason,
            )
        if self.phase is Phase.SYNCING and self.joined is not None:
            return self, Sync(joined=self.joined)
        return self, None

    def next_request_at(self) -> float:
        """Return the time of the next possible request, unless an event comes before."""
        if self.phase in (Phase.JOINING, Phase.SYNCING):
            return self.retry_at if self.failure is None else _NEVER
        if not self.has_group or self.phase is Phase.UNJOINED:
            return _NEVER
        return min(self.heartbeat_due, self.polled_at + self.timing.max_poll_interval_s)

    def _silent(self) -> tuple[Membership, Request | None]:
        """Leave the group after too long without a poll; a static member sends no leave and may return (KIP-345)."""
        leave = None
        if not self.instance_id:
            leave = Leave(member_id=self.member_id, reason="max.poll.interval.ms has passed without a poll")
        return self._reset("max.poll.interval.ms had passed without a poll", forget_member=True), leave

    def session_expired(self, now: float) -> bool:
        """Return whether the coordinator's silence exceeds the session timeout, so that it must be looked up again."""
        return self.has_group and now - self.heard_at > self.timing.session_timeout_s

    # --- answers --------------------------------------------------------------------------------------------------

    def join_answered(self, asked: Join, answer: Joined, now: float) -> Membership:
        """Process the join response: the new generation is complete."""
        if not self._is_of_now(asked):
            return self
        return replace(
            self,
            phase=Phase.SYNCING,
            joined=answer,
            member_id=answer.member_id,
            attempts=0,
            retry_at=0.0,
            heard_at=now,
        )

    def sync_answered(self, asked: Sync, assigned: frozenset[TopicPartition], now: float) -> Membership:
        """Process the assignment. A cooperative member that must revoke partitions joins again (KIP-429)."""
        if not self._is_of_now(asked):
            return self
        revoked = self.owned - assigned
        return replace(
            self,
            phase=Phase.STABLE,
            generation=asked.joined.generation,
            protocol=asked.joined.protocol,
            owned=assigned,
            joined=None,
            changed=Changed(revoked=revoked, added=assigned - self.owned, owned=assigned),
            rejoin=self.rejoin or ("partitions were given up" if revoked else ""),
            attempts=0,
            heard_at=now,
            heartbeat_due=now + self.timing.heartbeat_interval_s,
        )

    def heartbeat_answered(self, asked: Heartbeat, now: float) -> Membership:
        """Process a heartbeat response of a stable group."""
        return replace(self, heard_at=now) if self._is_of_now(asked) else self

    def failed(self, asked: Request, error: MillraceError, now: float, *, member_id: str = "") -> Membership:
        """Process a failed request. ``member_id`` is the id to join with, if the error carries one (KIP-394)."""
        if isinstance(asked, Leave) or not self._is_of_now(asked):
            return self
        if isinstance(error, MemberIdRequiredError):
            return replace(self, member_id=member_id, retry_at=now)
        if (outside := self._excluded(error)) is not None:
            return outside
        if isinstance(error, RebalanceInProgressError):
            return self._rebalances(asked, now)
        if not error.retriable:
            # After the error was raised to the caller, a member that was about to sync joins again.
            phase = Phase.JOINING if self.phase is Phase.SYNCING else self.phase
            return replace(self, failure=error, joined=None, phase=phase)
        if isinstance(asked, Heartbeat):
            # A coordinator that does not hear a member for too long removes it, and says so in a later response.
            wait_s = self.timing.backoff_s(self.attempts)
            return replace(self, heartbeat_due=min(self.heartbeat_due, now + wait_s), attempts=self.attempts + 1)
        return replace(self, retry_at=now + self.timing.backoff_s(self.attempts), attempts=self.attempts + 1)

    def commit_failed(self, error: MillraceError, generation: int, member_id: str) -> Membership:
        """Process a refused commit, which may also show that the group has removed this member."""
        is_of_now = (generation, member_id) == (self.generation, self.member_id) and self.can_commit
        if not is_of_now:
            return self
        if (outside := self._excluded(error)) is not None:
            return outside
        if isinstance(error, RebalanceInProgressError):
            return self.asked_to_rejoin("the group rebalances")
        return self

    def _excluded(self, error: MillraceError) -> Membership | None:
        """Return the state after an error that shows the removal of this member; None after any other error."""
        if isinstance(error, FencedInstanceIdError):
            return replace(self._reset(error.message, forget_member=True), failure=error)
        if isinstance(error, UnknownMemberError):
            return self._reset("the coordinator no longer knows this member", forget_member=True)
        if isinstance(error, IllegalGenerationError):
            return self._reset("the generation has ended", forget_member=False)
        return None

    def _is_of_now(self, asked: Request) -> bool:
        match asked:
            case Join():
                return self.phase is Phase.JOINING and asked.member_id == self.member_id
            case Sync():
                return self.phase is Phase.SYNCING and self.joined is asked.joined
            case Heartbeat():
                return (asked.member_id, asked.generation) == (self.member_id, self.generation)
            case _:
                return asked.member_id == self.member_id

    def _rebalances(self, asked: Request, now: float) -> Membership:
        if isinstance(asked, Heartbeat):
            return replace(self.asked_to_rejoin("the group rebalances"), heard_at=now)
        # A late sync, or a join during a rebalance that is just completing: join again, with the owned partitions.
        state = replace(self, phase=Phase.JOINING, joined=None)
        return replace(state, retry_at=now + self.timing.backoff_s(self.attempts), attempts=self.attempts + 1)

    def _reset(self, reason: str, *, forget_member: bool) -> Membership:
        """Return the state outside of the generation; owned partitions are lost, and the next poll reports them."""
        state = self._forgotten(reason)
        if not forget_member:
            state = replace(state, member_id=self.member_id)
        # A caller that is just revoking partitions finishes that first.
        return state if self.phase is Phase.PREPARING else replace(state, phase=Phase.UNJOINED)

    def _forgotten(self, reason: str) -> Membership:
        return replace(
            self,
            member_id="",
            generation=NO_GENERATION,
            rejoin="",
            reason=reason,
            joined=None,
            attempts=0,
            retry_at=0.0,
            heartbeat_due=_NEVER,
        )
