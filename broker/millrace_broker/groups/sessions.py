"""Sessions of a group's members, and pending member ids.

Invariants

- A member has a session timer unless one of its calls is open, because a member that waits cannot send heartbeats.
- A heartbeat only moves the deadline. A timer that fires before the deadline is set again for the rest of the time.
  A heartbeat therefore costs little.
- Each pending member id has a timer.
"""

from __future__ import annotations

from typing import Final

from millrace_broker.groups.effects import Effects, TimerKind
from millrace_broker.groups.members import MemberMetadata


class Sessions:
    """Session timers of one group."""

    def __init__(self, effects: Effects) -> None:
        self._effects: Final = effects
        self._pending: Final[set[str]] = set()

    def extend(self, member: MemberMetadata, now_ms: int, timeout_ms: int | None = None) -> None:
        """Move a member's deadline to its session timeout from now on, or to ``timeout_ms`` from now on."""
        member.deadline_ms = now_ms + (member.session_timeout_ms if timeout_ms is None else timeout_ms)
        if member.timer_at_ms is None or member.timer_at_ms > member.deadline_ms:
            self._set_timer(member, now_ms)

    def _set_timer(self, member: MemberMetadata, now_ms: int) -> None:
        member.timer_at_ms = member.deadline_ms
        self._effects.set_timer(TimerKind.SESSION, member.deadline_ms - now_ms, member.member_id)

    def has_expired(self, member: MemberMetadata, now_ms: int) -> bool:
        """Return whether a session has ended when its timer fires. If it has not, set the timer again."""
        member.timer_at_ms = None
        if (member.join_call is not None or member.sync_call is not None) and not member.is_new:
            return False  # the answer to the open call sets the timer
        if now_ms >= member.deadline_ms:
            return True
        self._set_timer(member, now_ms)
        return False

    def cancel(self, member: MemberMetadata) -> None:
        """Cancel the session timer of a member."""
        if member.timer_at_ms is not None:
            member.timer_at_ms = None
            self._effects.cancel_timer(TimerKind.SESSION, member.member_id)

    # --- pending members -----------------------------------------------------------------------------------

    @property
    def pending_members(self) -> frozenset[str]:
        """The member ids that were given to clients which have not joined with them yet (Kafka's name)."""
        return frozenset(self._pending)

    @property
    def has_pending_members(self) -> bool:
        """True if a client has a member id that it has not joined with yet."""
        return bool(self._pending)

    def is_pending(self, member_id: str) -> bool:
        """Return whether a member id is pending."""
        return member_id in self._pending

    def add_pending(self, member_id: str, timeout_ms: int) -> None:
        """Expect a client to join with a member id before the timeout."""
        self._pending.add(member_id)
        self._effects.set_timer(TimerKind.PENDING, timeout_ms, member_id)

    def pending_expired(self, member_id: str) -> None:
        """Forget a pending member id whose timer has fired."""
        self._pending.discard(member_id)

    def remove_pending(self, member_id: str) -> None:
        """Forget a pending member id, and cancel its timer."""
        self._pending.discard(member_id)
        self._effects.cancel_timer(TimerKind.PENDING, member_id)

    def remove_all_pending(self) -> None:
        """Forget all pending member ids, and cancel their timers."""
        for member_id in sorted(self._pending):
            self.remove_pending(member_id)
