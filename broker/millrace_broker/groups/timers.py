"""Timers of groups, in Kafka's purgatories ``Rebalance`` and ``Heartbeat``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from millrace_broker.groups.effects import TimerKey, TimerKind
from millrace_broker.purgatory import DelayedOperation, Purgatory, PurgatoryStatistics, Timer

_REBALANCE_KINDS: Final = (TimerKind.JOIN, TimerKind.SYNC, TimerKind.REVOCATION)

GroupTimer = tuple[str, TimerKey]
"""A group, and one of its timers."""


class GroupTimers:
    """Timers by group and key, for the event loop's thread."""

    def __init__(self, timer: Timer) -> None:
        self._rebalances: Final[Purgatory[GroupTimer]] = Purgatory("rebalance", timer)
        self._heartbeats: Final[Purgatory[GroupTimer]] = Purgatory("heartbeat", timer)

    def _purgatory(self, key: TimerKey) -> Purgatory[GroupTimer]:
        return self._rebalances if key.kind in _REBALANCE_KINDS else self._heartbeats

    def set(self, timer: GroupTimer, delay_ms: int, action: Callable[[], None]) -> None:
        """Call ``action`` after a delay, in place of the earlier timer with the same key."""
        self.cancel(timer)
        self._purgatory(timer[1]).complete_or_watch(_Timer(delay_ms, action), [timer])

    def cancel(self, timer: GroupTimer) -> None:
        """Cancel a timer, if it is set."""
        self._purgatory(timer[1]).complete_all(timer)

    def is_set(self, timer: GroupTimer) -> bool:
        """Return whether a timer is set."""
        return self._purgatory(timer[1]).waiting(timer) > 0

    @property
    def rebalances(self) -> PurgatoryStatistics:
        """Statistics of the rebalances that wait for members to join, or to ask for their assignments."""
        return self._rebalances.statistics()

    @property
    def heartbeats(self) -> PurgatoryStatistics:
        """Statistics of the sessions of members, and of pending member ids."""
        return self._heartbeats.statistics()


class _Timer(DelayedOperation):
    """Delayed operation whose cancellation completes it without an effect."""

    def __init__(self, delay_ms: int, action: Callable[[], None]) -> None:
        super().__init__(delay_ms)
        self._action: Final = action

    def try_complete(self) -> bool:
        return False

    def on_complete(self) -> None:
        pass

    def on_expiration(self) -> None:
        self._action()
