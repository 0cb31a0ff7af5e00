"""Group of a shard, of either protocol, with its offsets."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from millrace.errors import CoordinatorNotAvailableError
from millrace_broker.coordinators import late
from millrace_broker.groups.classic_group import ClassicGroup
from millrace_broker.groups.consumer.consumer_group import ConsumerGroup
from millrace_broker.groups.offsets import GroupOffsets
from millrace_broker.groups.states import GroupState
from millrace_broker.replication.runtime import ACKNOWLEDGED_WITHIN_S


@dataclass(slots=True)
class GroupEntry:
    """Group with its offsets.

    ``state_since_ms`` is the time of the last state change, in ms since 1970, -1 if unknown. Only a call in
    ``changing`` may append records of a consumer group, convert the group, or delete it.
    """

    group: ClassicGroup | ConsumerGroup
    offsets: GroupOffsets = field(default_factory=GroupOffsets)
    state: GroupState = GroupState.EMPTY
    state_since_ms: int = -1
    is_deleted: bool = False
    _lock: asyncio.Lock = field(default_factory=asyncio.Lock)

    @property
    def is_changing(self) -> bool:
        """True if a call is in ``changing``, or waits for its turn."""
        return self._lock.locked()

    @asynccontextmanager
    async def changing(self) -> AsyncIterator[None]:
        """Wait for the turn to change the group, and have it for the duration of the block.

        Raises ``CoordinatorNotAvailableError`` after ``offsets.commit.timeout.ms``, because calls must not pile up
        behind a change that is late.
        """
        try:
            async with asyncio.timeout(ACKNOWLEDGED_WITHIN_S):
                await self._lock.acquire()
        except TimeoutError:
            raise late() from None
        try:
            yield
        finally:
            self._lock.release()

    @property
    def classic(self) -> ClassicGroup:
        """The group, which has the classic protocol.

        Raises ``CoordinatorNotAvailableError`` if it has been converted meanwhile.
        """
        if isinstance(self.group, ConsumerGroup):
            raise CoordinatorNotAvailableError(f"group {self.group.group_id} has become a consumer group: retry")
        return self.group

    @property
    def consumer(self) -> ConsumerGroup:
        """The group, which has the consumer protocol.

        Raises ``CoordinatorNotAvailableError`` if it has been converted meanwhile.
        """
        if isinstance(self.group, ClassicGroup):
            raise CoordinatorNotAvailableError(f"group {self.group.group_id} has become a classic group: retry")
        return self.group
