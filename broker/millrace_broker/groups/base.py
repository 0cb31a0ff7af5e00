"""What every part of a group's machine needs: its state, the calls parked in it, its members' sessions, its effects.

Invariants

- A parked call is in ``_parked`` and with its member, until it is answered or abandoned, and that happens once.
- A member's session timer is set unless the member waits for an answer: then it cannot be heard of. Being heard of
  only moves the deadline: a timer that fires before it is set again for the rest, so that a heartbeat costs little.
"""

from __future__ import annotations

from typing import Final

from millrace.errors import (
    CoordinatorNotAvailableError,
    MillraceError,
    RebalanceInProgressError,
    UnknownMemberError,
)
from millrace_broker.groups.model import (
    Answer,
    CancelTimer,
    Effect,
    GroupSettings,
    GroupState,
    JoinAnswer,
    SetTimer,
    SyncAnswer,
    TimerKey,
    TimerKind,
)
from millrace_broker.groups.roster import Member, Roster

NEW_MEMBER_JOIN_TIMEOUT_MS: Final = 300_000
"""How long a first join may be parked: who waits longer has gone, and never learnt its member id (Kafka's constant)."""

_BEFORE: Final = {
    GroupState.EMPTY: (GroupState.PREPARING_REBALANCE,),
    GroupState.PREPARING_REBALANCE: (GroupState.STABLE, GroupState.COMPLETING_REBALANCE, GroupState.EMPTY),
    GroupState.COMPLETING_REBALANCE: (GroupState.PREPARING_REBALANCE,),
    GroupState.STABLE: (GroupState.COMPLETING_REBALANCE,),
    GroupState.DEAD: tuple(GroupState),
}
"""The states from which each one may be entered."""


class GroupBase:
    """State, parked calls, sessions and effects of one group."""

    def __init__(self, group_id: str, settings: GroupSettings) -> None:
        self.group_id: Final = group_id
        self.settings: Final = settings
        self.state = GroupState.EMPTY
        self.generation_id = 0
        self.protocol_type = ""
        self.protocol_name: str | None = None
        self.roster: Final = Roster()
        self.pending: Final[set[str]] = set()
        """Member ids that were given out and that nobody has joined with yet."""
        self._pending_sync: Final[set[str]] = set()
        self._parked: Final[dict[int, Member]] = {}
        self._effects: list[Effect] = []

    def take_effects(self) -> list[Effect]:
        """What is to be done since the last time, in order. To be called after every event."""
        effects, self._effects = self._effects, []
        return effects

    @property
    def parked_calls(self) -> frozenset[int]:
        """The calls that wait here."""
        return frozenset(self._parked)

    def _enter(self, state: GroupState) -> None:
        assert self.state in _BEFORE[state], f"{self.state} to {state}"
        self.state = state

    def _set_timer(self, key: TimerKey, delay_ms: int) -> None:
        self._effects.append(SetTimer(key, max(0, delay_ms)))

    def _cancel_timer(self, kind: TimerKind, member_id: str = "") -> None:
        self._effects.append(CancelTimer(TimerKey(kind, member_id)))

    # --- parked calls --------------------------------------------------------------------------------------

    def _park_join(self, member: Member, call: int) -> None:
        before = self.roster.park_join(member, call)
        self._parked[call] = member
        self._supersede(before)

    def _park_sync(self, member: Member, call: int) -> None:
        before, member.sync_call = member.sync_call, call
        self._parked[call] = member
        self._supersede(before)

    def _supersede(self, call: int | None) -> None:
        if call is not None:
            del self._parked[call]
            again = RebalanceInProgressError(
                f"the same member has asked group {self.group_id} again, and is answered there"
            )
            self._effects.append(Answer(call, again))

    def _answer_join(self, member: Member, answer: JoinAnswer | MillraceError) -> None:
        call = self.roster.take_join(member)
        if call is not None:
            del self._parked[call]
            self._effects.append(Answer(call, answer))

    def _answer_sync(self, member: Member, answer: SyncAnswer | MillraceError) -> None:
        call, member.sync_call = member.sync_call, None
        if call is not None:
            del self._parked[call]
            self._effects.append(Answer(call, answer))

    def abandon(self, call: int, now_ms: int) -> None:
        """Whoever made a parked call has gone. The member is not: from now on it must be heard of within its session.

        A call that is answered already is none of ours any more, which is no harm.
        """
        member = self._parked.pop(call, None)
        if member is None:
            return
        if member.join_call == call:
            self.roster.take_join(member)
        else:
            member.sync_call = None
        member.is_new = False
        self._heard_of(member, now_ms)

    # --- sessions ------------------------------------------------------------------------------------------

    def _heard_of(self, member: Member, now_ms: int, timeout_ms: int | None = None) -> None:
        """A member lives: it has its session's time from now on, or ``timeout_ms``."""
        member.deadline_ms = now_ms + (member.session_timeout_ms if timeout_ms is None else timeout_ms)
        if member.timer_at_ms is None or member.timer_at_ms > member.deadline_ms:
            self._set_session_timer(member, now_ms)

    def _set_session_timer(self, member: Member, now_ms: int) -> None:
        member.timer_at_ms = member.deadline_ms
        self._set_timer(TimerKey(TimerKind.SESSION, member.member_id), member.deadline_ms - now_ms)

    def _is_overdue(self, member: Member, now_ms: int) -> bool:
        """A session timer has fired: whether the member's time is up. If it is not, the timer is set again."""
        member.timer_at_ms = None
        if (member.join_call is not None or member.sync_call is not None) and not member.is_new:
            return False  # it waits for us; its timer is set when it is answered
        if now_ms >= member.deadline_ms:
            return True
        self._set_session_timer(member, now_ms)
        return False

    def _cancel_session_timer(self, member: Member) -> None:
        if member.timer_at_ms is not None:
            member.timer_at_ms = None
            self._cancel_timer(TimerKind.SESSION, member.member_id)

    def _take_out(self, member: Member, error: MillraceError | None = None) -> None:
        """A member goes; whatever it waits for is answered with an error."""
        gone = error or UnknownMemberError(
            f"member {member.member_id} is not in group {self.group_id} any more: join again without a member id"
        )
        self._answer_join(member, gone)
        self._answer_sync(member, gone)
        self._cancel_session_timer(member)
        self._pending_sync.discard(member.member_id)
        self.roster.remove(member)

    def _forget_pending(self, member_id: str) -> None:
        self.pending.discard(member_id)
        self._cancel_timer(TimerKind.PENDING, member_id)

    # --- the end -------------------------------------------------------------------------------------------

    def delete(self) -> None:
        """The group is no more. Only one without members is deleted."""
        assert not len(self.roster), "a group with members is not deleted"
        self._stop_timers()
        self._enter(GroupState.DEAD)

    def close(self) -> None:
        """This broker stops to coordinate the group: whoever waits is sent to find the coordinator."""
        gone = CoordinatorNotAvailableError(f"the coordinator of group {self.group_id} stops: find it anew")
        for member in self.roster:
            self._answer_join(member, gone)
            self._answer_sync(member, gone)
            self._cancel_session_timer(member)
        self._stop_timers()
        self._enter(GroupState.DEAD)

    def _stop_timers(self) -> None:
        self._cancel_timer(TimerKind.JOIN)
        self._cancel_timer(TimerKind.SYNC)
        for member_id in sorted(self.pending):
            self._forget_pending(member_id)
