"""A replica that the controller has assigned to this broker, Kafka's ``HostedPartition``.

Invariant: the state machine, the log and this object change only under the partition's lock (``Waiters.locks``). The
exceptions are a leader's events in the event loop: appends, follower fetches, and the controller's answers.
"""

from __future__ import annotations

from collections import deque
from typing import Final
from uuid import UUID

from millrace.errors import NotLeaderError
from millrace_broker.decisions import LEADER_DURING_DELETE, LeaderAndIsrState
from millrace_broker.log import PartitionLog
from millrace_broker.purgatory import PartitionKey
from millrace_broker.replication.core import Follower, Leader, Replica

UNREAD_MAX: Final = 1000
"""The appends after the high watermark whose sizes are counted one by one. Later ones are counted together."""


class HostedReplica:
    """A replica's state machine and its log.

    ``is_alone``: this broker leads, and neither followers nor former replicas are in the ISR. The log end offset is the
    high watermark.
    """

    def __init__(self, key: PartitionKey, topic_id: UUID, log: PartitionLog, machine: Replica) -> None:
        self.key: Final = key
        self.topic_id: Final = topic_id
        self.log: Final = log
        self.machine: Final = machine
        self.is_alone = False
        self.followers: tuple[int, ...] = ()
        """The other replicas, while this broker leads."""
        self.unread: Final[deque[tuple[int, int]]] = deque()
        """Appends that are not readable yet, at most ``UNREAD_MAX``: end offset and size of each."""

    @property
    def name(self) -> str:
        """``topic-partition``."""
        return self.log.name

    @property
    def leads(self) -> bool:
        """True if this broker leads the partition."""
        return isinstance(self.machine.role, Leader)

    def check_leads(self) -> None:
        """Raise ``NotLeaderError`` unless this broker leads the partition."""
        if not isinstance(self.machine.role, Leader):
            raise NotLeaderError(f"{self.name} is not led by this broker: fetch the metadata again")

    @property
    def leader(self) -> Leader:
        """The leader's side. Raises ``NotLeaderError``."""
        role = self.machine.role
        if not isinstance(role, Leader):
            raise NotLeaderError(f"{self.name} is not led by this broker: fetch the metadata again")
        return role

    @property
    def follower(self) -> Follower | None:
        """The follower's side, if this broker follows."""
        role = self.machine.role
        return role if isinstance(role, Follower) else None

    def is_moved_from(self, broker_id: int, state: LeaderAndIsrState) -> bool:
        """Return whether an UpdateMetadata ends this broker's role.

        That is so if a later leader epoch has another leader, or no replica on this broker. A topic that is marked for
        deletion names no leader there. Its replicas continue until a StopReplica, because it may be being reassigned.
        """
        leadership = state.leadership
        if self.machine.role is None or leadership.leader_epoch <= self.machine.leader_epoch:
            return False
        is_led_elsewhere = self.leads and leadership.leader not in (broker_id, LEADER_DURING_DELETE)
        return is_led_elsewhere or broker_id not in state.assignment.replicas

    def note_watermark(self, now_ms: int) -> None:
        """Report the log's high watermark to the leader's state machine before the role changes.

        Appends do not report it while ``is_alone`` holds.
        """
        if self.is_alone:
            self.leader.appended(self.log.high_watermark, now_ms)

    def note_unread(self) -> None:
        """Count the records after the high watermark of a new leader as unread."""
        if not self.unread and self.log.high_watermark < self.log.log_end_offset:
            self.unread.append((self.log.log_end_offset, self.log.size_bytes))

    def add_unread(self, size_bytes: int) -> None:
        """Count an append as unread, together with the one before if the high watermark has not moved for long."""
        if len(self.unread) == UNREAD_MAX:
            size_bytes += self.unread.pop()[1]
        self.unread.append((self.log.log_end_offset, size_bytes))

    def take_readable_bytes(self) -> int:
        """Return how many appended bytes have become readable since the last call."""
        watermark, size_bytes = self.log.high_watermark, 0
        while self.unread and self.unread[0][0] <= watermark:
            size_bytes += self.unread.popleft()[1]
        return size_bytes
