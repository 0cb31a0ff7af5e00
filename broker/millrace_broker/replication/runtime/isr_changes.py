"""ISR changes that leaders ask the controller for, Kafka's AlterPartition (KIP-497).

Each change is retried until the controller has decided.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Final

from millrace.errors import MillraceError, OperationNotAttemptedError
from millrace_broker.decisions import IsrChange, Leadership, TopicPartition
from millrace_broker.replication.core import AlterIsr, Leader, LeaderOutcome
from millrace_broker.replication.runtime.delayed_produce import DelayedProduce
from millrace_broker.replication.runtime.hosted import HostedReplica

_logger: Final = logging.getLogger(__name__)

AlterPartition = Callable[[TopicPartition, IsrChange], Awaitable[Leadership]]
"""Asks the controller for another ISR and retries until it answers; returns the new state, or raises the refusal."""

_ASKED_AGAIN_S: Final = 0.5


class IsrChanges:
    """Sends ISR changes and passes the answers to the leaders' state machines.

    ``shrinks`` and ``expands`` count since the broker's start.
    """

    def __init__(
        self,
        waiting: DelayedProduce,
        now_ms: Callable[[], int],
        follow: Callable[[HostedReplica, LeaderOutcome], None],
        alter_partition: Callable[[], AlterPartition | None],
    ) -> None:
        """Take the parts. ``now_ms`` is the time of state machines, ``follow`` carries out a leader's outcome.

        ``alter_partition`` returns the call to the controller, None while this broker knows no controller.
        """
        self._waiting: Final = waiting
        self._now_ms: Final = now_ms
        self._follow: Final = follow
        self._alter_partition: Final = alter_partition
        self.shrinks = 0
        self.expands = 0

    async def ask(self, replica: HostedReplica, leader: Leader, asked: AlterIsr) -> None:
        """Ask the controller for another ISR, until it has answered or this broker stops leading."""
        _logger.info("%s: requests the ISR %s instead of %s", replica.name, list(asked.isr), sorted(leader.isr))
        again: AlterIsr | None = asked
        while again is not None and replica.machine.role is leader:
            outcome = await self._ask_once(replica, leader, again)
            again = outcome.alter_isr
            self._follow(replica, replace(outcome, alter_isr=None))
            self._waiting.check(replica.key)  # the ISR may be too small now
            if again is not None:
                await asyncio.sleep(_ASKED_AGAIN_S)

    async def _ask_once(self, replica: HostedReplica, leader: Leader, asked: AlterIsr) -> LeaderOutcome:
        alter = self._alter_partition()
        if alter is None:
            unknown = OperationNotAttemptedError("the controller is unknown")
            return leader.isr_refused(asked, unknown, self._now_ms())
        change = IsrChange(
            isr=asked.isr,
            leader_epoch=asked.leader_epoch,
            partition_epoch=asked.partition_epoch,
            broker_epochs=asked.broker_epochs,
        )
        answer: Leadership | MillraceError
        try:
            answer = await alter(TopicPartition(*replica.key), change)
        except MillraceError as error:
            _logger.info("%s: the ISR remains %s: %s", replica.name, sorted(leader.isr), error.message)
            answer = error
        if replica.machine.role is not leader:
            return LeaderOutcome()
        if isinstance(answer, MillraceError):
            return leader.isr_refused(asked, answer, self._now_ms())
        self.shrinks += len(answer.isr) < len(leader.isr)
        self.expands += len(answer.isr) > len(leader.isr)
        return leader.isr_altered(answer.isr, answer.leader_epoch, answer.partition_epoch, self._now_ms())
