"""Group of a shard, of either protocol, with its offsets."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from millrace.errors import CoordinatorNotAvailableError
from millrace_broker.groups.classic_group import ClassicGroup
from millrace_broker.groups.consumer.consumer_group import ConsumerGroup
from millrace_broker.groups.offsets import GroupOffsets
from millrace_broker.groups.states import GroupState


@dataclass(slots=True)
class GroupEntry:
    """Group with its offsets; ``state_since_ms`` is the time of the last state change, in ms since 1970, -1 if
    unknown.

    The holder of ``lock`` may append records of a consumer group, convert the group, or delete it.
    """

    group: ClassicGroup | ConsumerGroup
    offsets: GroupOffsets = field(default_factory=GroupOffsets)
    state: GroupState = GroupState.EMPTY
    state_since_ms: int = -1
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    is_deleted: bool = False

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
