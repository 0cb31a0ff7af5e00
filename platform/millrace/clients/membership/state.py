"""A member of a group as a pure state machine: events in, with their time; a new state, and what to do, out.

Two parties drive it. The caller's thread polls: it lets go of partitions before a rebalance and takes new ones after
it, for that is when listeners are called. The requests are made elsewhere, one at a time: ``request`` says which is
due, and its answer comes back as an event.

Invariants:

- Partitions are owned in one generation: ``owned`` is empty, or what the last sync of ``generation`` gave, or what is
  left of that (cooperatively) while the member joins again, or what was lost with the generation and has not yet been
  taken from the caller (``generation`` is -1 then, and nothing can be committed).
- Nobody is asked to join before the caller has let go of what must be given up: PREPARING ends by ``prepared`` only.
- The generation never goes back but to -1; what is answered to a request of another generation or member is ignored.
- A member that fell silent (``max.poll.interval.ms``) leaves, and joins again only when it is polled.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final

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
    """Where a member is in a rebalance."""

    UNJOINED = "unjoined"
    PREPARING = "preparing"
    JOINING = "joining"
    SYNCING = "syncing"
    STABLE = "stable"


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """A member's times in seconds. ``jitter`` (0.8 to 1.2) keeps members from repeating requests in step."""

    session_timeout_s: float = 45.0
    heartbeat_interval_s: float = 3.0
    max_poll_interval_s: float = 300.0
    retry_backoff_s: float = 0.1
    retry_backoff_max_s: float = 1.0
    jitter: float = 1.0

    def backoff_s(self, attempt: int) -> float:
        """How long to wait before repeating a request for the ``attempt``-th time, from 0."""
        return min(self.retry_backoff_s * (1 << min(attempt, 30)), self.retry_backoff_max_s) * self.jitter


@dataclass(frozen=True, slots=True, kw_only=True)
class Membership:
    """The state of a member; every method that ends an event returns the next one."""

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
        """Whether the member is, or should be, on its way into another generation."""
        return self.phase is not Phase.STABLE or bool(self.rejoin)

    @property
    def has_group(self) -> bool:
        """Whether the member is in a generation."""
        return self.generation != NO_GENERATION

    @property
    def can_commit(self) -> bool:
        """Whether the group takes offsets from this member now: it may have gone on to a generation not yet known."""
        return self.has_group and self.phase in (Phase.STABLE, Phase.PREPARING)

    def subscribed(self, topics: frozenset[str]) -> Membership:
        """The member wants other topics; a group that it is in must rebalance."""
        if topics == self.topics:
            return self
        return replace(self, topics=topics).asked_to_rejoin("the subscription has changed")

    def asked_to_rejoin(self, reason: str) -> Membership:
        """Join again when next polled."""
        return replace(self, rejoin=self.rejoin or reason)

    def polled(self, now: float) -> tuple[Membership, Prepare | None]:
        """The caller polls. What is returned must be done, then ``prepared`` called, before the member joins."""
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
        """The caller has let go of partitions; if the rest was lost meanwhile, there is more to let go of first."""
        state = replace(self, owned=self.owned - done.revoked - done.lost)
        if state.generation == NO_GENERATION and state.owned:
            return state
        return replace(state, phase=Phase.JOINING, attempts=0, retry_at=0.0)

    def took_changes(self) -> Membership:
        """The caller has taken what ``changed`` told it."""
        return replace(self, changed=None)

    def took_failure(self) -> Membership:
        """The caller was told of the failure; polling again tries again, unless somebody else has taken its place."""
        return self if isinstance(self.failure, FencedInstanceIdError) else replace(self, failure=None)

    def left(self) -> Membership:
        """The caller gives up its membership, and its partitions."""
        return replace(
            self._forgotten("joined again"), phase=Phase.UNJOINED, owned=frozenset(), changed=None, failure=None
        )

    # --- requests -------------------------------------------------------------------------------------------------

    def request(self, now: float) -> tuple[Membership, Request | None]:
        """The request that is due now, if any."""
        if self.phase in (Phase.STABLE, Phase.PREPARING) and self.has_group:
            if now - self.polled_at > self.timing.max_poll_interval_s:
                return self._silent()
            if now >= self.heartbeat_due:
                state = replace(self, heartbeat_due=now + self.timing.heartbeat_interval_s)
                return state, Heartbeat(member_id=self.member_id, generation=self.generation)
        if now < self.retry_at or self.failure is not None:
            return self, None
        if self.phase is Phase.JOINING:
            # What makes another rebalance necessary from here on is not in this request.
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
        """When ``request`` may have something, unless an event comes before."""
        if self.phase in (Phase.JOINING, Phase.SYNCING):
            return self.retry_at if self.failure is None else _NEVER
        if not self.has_group or self.phase is Phase.UNJOINED:
            return _NEVER
        return min(self.heartbeat_due, self.polled_at + self.timing.max_poll_interval_s)

    def _silent(self) -> tuple[Membership, Request | None]:
        """The caller has not polled for too long. A static member just falls silent, and may come back (KIP-345)."""
        leave = None
        if not self.instance_id:
            leave = Leave(member_id=self.member_id, reason="max.poll.interval.ms has passed without a poll")
        return self._reset("max.poll.interval.ms had passed without a poll", forget_member=True), leave

    def session_expired(self, now: float) -> bool:
        """Whether the coordinator has been silent for so long that another one should be looked for."""
        return self.has_group and now - self.heard_at > self.timing.session_timeout_s

    # --- answers --------------------------------------------------------------------------------------------------

    def join_answered(self, asked: Join, answer: Joined, now: float) -> Membership:
        """The group has all its members: it is in a new generation."""
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
        """The member knows its partitions. Cooperatively, what it must give up makes it join again (KIP-429)."""
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
        """The coordinator knows the member, and the group is stable."""
        return replace(self, heard_at=now) if self._is_of_now(asked) else self

    def failed(self, asked: Request, error: MillraceError, now: float, *, member_id: str = "") -> Membership:
        """A request failed. ``member_id`` is what came beside the error: the id to join with (KIP-394)."""
        if isinstance(asked, Leave) or not self._is_of_now(asked):
            return self
        if isinstance(error, MemberIdRequiredError):
            return replace(self, member_id=member_id, retry_at=now)
        if (outside := self._excluded(error)) is not None:
            return outside
        if isinstance(error, RebalanceInProgressError):
            return self._rebalances(asked, now)
        if not error.retriable:
            return replace(self, failure=error, joined=None, phase=_before(self.phase))
        if isinstance(asked, Heartbeat):
            # A member that has not been heard for too long is told so in the end.
            wait_s = self.timing.backoff_s(self.attempts)
            return replace(self, heartbeat_due=min(self.heartbeat_due, now + wait_s), attempts=self.attempts + 1)
        return replace(self, retry_at=now + self.timing.backoff_s(self.attempts), attempts=self.attempts + 1)

    def commit_failed(self, error: MillraceError, generation: int, member_id: str) -> Membership:
        """A commit as this member was refused: the group tells by that too that it has gone on without it."""
        is_of_now = (generation, member_id) == (self.generation, self.member_id) and self.can_commit
        if not is_of_now:
            return self
        if (outside := self._excluded(error)) is not None:
            return outside
        if isinstance(error, RebalanceInProgressError):
            return self.asked_to_rejoin("the group rebalances")
        return self

    def _excluded(self, error: MillraceError) -> Membership | None:
        """This member after an error that says that the group has gone on without it; None after any other."""
        if isinstance(error, FencedInstanceIdError):
            return replace(self._reset(error.message, forget_member=True), failure=error)
        if isinstance(error, UnknownMemberError):
            return self._reset("the group did not know the member any more", forget_member=True)
        if isinstance(error, IllegalGenerationError):
            return self._reset("the generation was over", forget_member=False)
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
        # A sync that came too late, or a join into a group that is just ending one: join (again), with what is owned.
        state = replace(self, phase=Phase.JOINING, joined=None)
        return replace(state, retry_at=now + self.timing.backoff_s(self.attempts), attempts=self.attempts + 1)

    def _reset(self, reason: str, *, forget_member: bool) -> Membership:
        """Out of the generation. What is owned is lost: the caller is told when it polls."""
        state = self._forgotten(reason)
        if not forget_member:
            state = replace(state, member_id=self.member_id)
        # A caller that is just letting go of its partitions finishes that first.
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


def _before(phase: Phase) -> Phase:
    """Where a member goes on after a request was refused for good, once its caller has been told."""
    return Phase.JOINING if phase is Phase.SYNCING else phase
