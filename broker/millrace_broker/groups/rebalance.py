"""How a group gets from one generation to the next: gather the members, choose leader and assignor, hand out parts.

Invariants

- The generation only grows, by one with every rebalance that comes to its end.
- A rebalance ends when every member has joined and nobody is expected any more, or when its time is up; then those who
  have not joined are no members any more, but for static ones.
- No rebalance ends without a leader that has joined: if nobody has, it goes on, until sessions end.
- The assignment is written down before any member learns its part.

Source: Kafka 3.9's ``GroupCoordinator``, ``DelayedJoin``, ``InitialDelayedJoin``, ``DelayedSync``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from millrace.coordinator_records import read_subscription
from millrace.errors import InvalidRecordError, MillraceError, RebalanceInProgressError, UnsupportedVersionError
from millrace_broker.groups.base import GroupBase
from millrace_broker.groups.model import (
    CONSUMER,
    GroupSettings,
    GroupState,
    JoinAnswer,
    Protocols,
    Store,
    StoredGroup,
    SyncAnswer,
    TimerKey,
    TimerKind,
)
from millrace_broker.groups.roster import Member


@dataclass(frozen=True, slots=True)
class Replaced:
    """A static member that is another process now, and how it was: that holds again if it cannot be written down."""

    member: Member
    old_member_id: str
    old_protocols: Protocols
    old_session_timeout_ms: int
    old_rebalance_timeout_ms: int


@dataclass(frozen=True, slots=True)
class _Storing:
    generation_id: int
    assignments: Mapping[str, bytes]
    replaced: Replaced | None = None


class Rebalance(GroupBase):
    """The part of a group's machine that makes generations."""

    def __init__(self, group_id: str, settings: GroupSettings) -> None:
        super().__init__(group_id, settings)
        self._initial_left_ms: int | None = None
        """In the first rebalance of an empty group, which waits for more members: for how long it still may."""
        self._has_new_member = False
        self._storing: Final[dict[int, _Storing]] = {}
        self._next_token = 0
        self._topics: tuple[int, frozenset[str] | None] = (-1, None)

    # --- gathering -----------------------------------------------------------------------------------------

    def _prepare(self, now_ms: int) -> None:
        """Begin a rebalance, unless one has begun and gathers members."""
        if self.state is GroupState.PREPARING_REBALANCE:
            return
        if self.state is GroupState.COMPLETING_REBALANCE:
            self._fail_syncs(
                RebalanceInProgressError(f"group {self.group_id} rebalances once more: join again"), now_ms
            )
        self._cancel_timer(TimerKind.SYNC)
        self._pending_sync.clear()
        timeout_ms = self.roster.rebalance_timeout_ms
        if self.state is GroupState.EMPTY:
            delay_ms = self.settings.initial_rebalance_delay_ms
            self._initial_left_ms = max(0, timeout_ms - delay_ms)
            timeout_ms = delay_ms
        self._enter(GroupState.PREPARING_REBALANCE)
        self._set_timer(TimerKey(TimerKind.JOIN), timeout_ms)

    def _fail_syncs(self, error: MillraceError, now_ms: int) -> None:
        """Nobody gets an assignment of this generation."""
        for member in self.roster:
            member.assignment = b""
            if member.sync_call is not None:
                self._answer_sync(member, error)
                self._heard_of(member, now_ms)

    def _check_joined(self, now_ms: int) -> None:
        """End the rebalance if everybody is there. The first one of an empty group takes its time all the same."""
        if (
            self.state is GroupState.PREPARING_REBALANCE
            and self._initial_left_ms is None
            and self.roster.have_all_joined
            and not self.pending
        ):
            self._complete_join(now_ms)

    def _join_time_is_up(self, now_ms: int) -> None:
        if self.state is not GroupState.PREPARING_REBALANCE:
            return
        if self._initial_left_ms and self._has_new_member:
            self._has_new_member = False
            delay_ms = min(self.settings.initial_rebalance_delay_ms, self._initial_left_ms)
            self._initial_left_ms -= delay_ms
            self._set_timer(TimerKey(TimerKind.JOIN), delay_ms)
            return
        self._complete_join(now_ms)

    def _complete_join(self, now_ms: int) -> None:
        """Everybody who counts has joined: begin the next generation."""
        self._initial_left_ms = None
        self._has_new_member = False
        if not self.roster.have_all_joined:
            for member in list(self.roster):
                if member.join_call is None and member.group_instance_id is None:
                    self._take_out(member)
        if not self.roster.elect_joined_leader() and len(self.roster):
            self._set_timer(TimerKey(TimerKind.JOIN), self.roster.rebalance_timeout_ms)
            return
        self._cancel_timer(TimerKind.JOIN)
        self.generation_id += 1
        if not len(self.roster):
            self.protocol_name = None
            self._enter(GroupState.EMPTY)
            self._store({})
            return
        self.protocol_name = self.roster.select_protocol()
        self._enter(GroupState.COMPLETING_REBALANCE)
        for member in self.roster:
            self._answer_join(member, self._join_answer(member))
            member.is_new = False
            self._pending_sync.add(member.member_id)
            self._heard_of(member, now_ms)
        self._set_timer(TimerKey(TimerKind.SYNC), self.roster.rebalance_timeout_ms)

    def _join_answer(self, member: Member, *, skip_assignment: bool = False) -> JoinAnswer:
        is_leader = self.roster.leader == member.member_id
        protocol_name = self.protocol_name or ""
        return JoinAnswer(
            generation_id=self.generation_id,
            protocol_type=self.protocol_type,
            protocol_name=protocol_name,
            leader=self.roster.leader or "",
            member_id=member.member_id,
            skip_assignment=skip_assignment and is_leader,
            members=self.roster.joined_members(protocol_name) if is_leader else (),
        )

    # --- handing out ---------------------------------------------------------------------------------------

    def _has_asked(self, member: Member) -> None:
        """A member has asked for its assignment in time."""
        self._pending_sync.discard(member.member_id)
        if not self._pending_sync:
            self._cancel_timer(TimerKind.SYNC)

    def _sync_time_is_up(self, now_ms: int) -> None:
        """Members that joined and then did not ask for their assignment are gone."""
        is_due = self.state in (GroupState.COMPLETING_REBALANCE, GroupState.STABLE) and self._pending_sync
        if not is_due:
            return
        for member_id in sorted(self._pending_sync):
            member = self.roster.get(member_id)
            if member is not None:
                self._take_out(member)
        self._pending_sync.clear()
        self._prepare(now_ms)

    def _store(self, assignments: Mapping[str, bytes], replaced: Replaced | None = None) -> None:
        token, self._next_token = self._next_token, self._next_token + 1
        self._storing[token] = _Storing(self.generation_id, assignments, replaced)
        self._effects.append(Store(token, self._as_stored(assignments)))

    @property
    def _is_storing_assignment(self) -> bool:
        """Whether this generation's assignment is being written down: what the leader sends again is passed over."""
        return any(
            storing.generation_id == self.generation_id and storing.replaced is None
            for storing in self._storing.values()
        )

    def _as_stored(self, assignments: Mapping[str, bytes]) -> StoredGroup:
        name = self.protocol_name or ""
        members = tuple(member.stored(name, assignments.get(member.member_id, b"")) for member in self.roster)
        return StoredGroup(
            protocol_type=self.protocol_type,
            generation_id=self.generation_id,
            protocol_name=self.protocol_name,
            leader=self.roster.leader,
            members=members,
        )

    def stored(self, token: int, error: MillraceError | None, now_ms: int) -> None:
        """What a ``Store`` asked for has been done, or has failed with ``error``."""
        storing = self._storing.pop(token)
        if storing.generation_id != self.generation_id:
            return  # a later generation has been written down meanwhile, or will be
        if storing.replaced is not None:
            if self.state is GroupState.STABLE:
                self._replacement_stored(storing.replaced, error, now_ms)
        elif self.state is GroupState.COMPLETING_REBALANCE:
            if error is None:
                self._hand_out(storing.assignments, now_ms)
            else:
                self._fail_syncs(error, now_ms)
                self._prepare(now_ms)
                self._check_joined(now_ms)

    def _hand_out(self, assignments: Mapping[str, bytes], now_ms: int) -> None:
        self._enter(GroupState.STABLE)
        for member in self.roster:
            member.assignment = assignments.get(member.member_id, b"")
            if member.sync_call is not None:
                self._answer_sync(member, self._sync_answer(member))
                self._heard_of(member, now_ms)

    def _sync_answer(self, member: Member) -> SyncAnswer:
        return SyncAnswer(
            protocol_type=self.protocol_type, protocol_name=self.protocol_name or "", assignment=member.assignment
        )

    def _replacement_stored(self, replaced: Replaced, error: MillraceError | None, now_ms: int) -> None:
        member = replaced.member
        if self.roster.get(member.member_id) is not member:
            return
        if error is None:
            self._answer_join(member, self._join_answer(member, skip_assignment=True))
        else:
            self._answer_join(member, error)
            self._cancel_session_timer(member)
            self.roster.rename(member, replaced.old_member_id)
            self.roster.set_protocols(member, replaced.old_protocols)
            member.session_timeout_ms = replaced.old_session_timeout_ms
            member.rebalance_timeout_ms = replaced.old_rebalance_timeout_ms
        self._heard_of(member, now_ms)

    # --- subscriptions -------------------------------------------------------------------------------------

    def subscribed_topics(self) -> frozenset[str] | None:
        """The topics that members of this generation want; None if it cannot be told: it is no group of consumers."""
        if self._topics[0] != self.generation_id:
            self._topics = (self.generation_id, self._read_topics())
        return self._topics[1]

    def _read_topics(self) -> frozenset[str] | None:
        if self.protocol_type != CONSUMER:
            return None
        if not len(self.roster):
            return frozenset()
        if self.protocol_name is None:
            return None
        topics: set[str] = set()
        for member in self.roster:
            wanted = topics_of(member.metadata(self.protocol_name))
            if wanted is None:
                return None
            topics |= wanted
        return frozenset(topics)


def topics_of(subscription: bytes) -> frozenset[str] | None:
    """The topics of a consumer's subscription; None when it is none."""
    try:
        return frozenset(read_subscription(subscription)[1].topics)
    except (InvalidRecordError, UnsupportedVersionError):
        return None
