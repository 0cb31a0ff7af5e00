"""State machine of this broker's replica of a partition.

The replica leads, follows or stops. The code is pure.

Invariants: The controller epoch and the leader epoch never go back. A follower belongs to one leader epoch, a leader to
consecutive leader epochs. Each role takes the high watermark over from the previous role. A fenced leader leads again
only after a decision of the controller. That decision may name the same leader epoch, because no other broker has led
in between.

Source: Kafka's ``ReplicaManager.becomeLeaderOrFollower`` and ``stopReplicas``, ``Partition.makeLeader`` and
``makeFollower``.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from millrace.errors import (
    FencedLeaderEpochError,
    NotLeaderError,
    StaleControllerEpochError,
    UnknownTopicOrPartitionError,
)
from millrace_broker.decisions import PartitionDecision
from millrace_broker.replication.core.follower import Effect, Follower
from millrace_broker.replication.core.leader import Leader, LeaderOutcome
from millrace_broker.replication.core.model import LogView, ReplicationSettings
from millrace_broker.replication.core.truncation import check_leader_epoch

NO_EPOCH: Final = -1
"""The leader epoch of a StopReplica that names none; it is never too old."""
EPOCH_DURING_DELETE: Final = -2
"""The leader epoch of a StopReplica that deletes a topic; no later request brings its partitions back."""


def check_controller_epoch(known: int, requested: int) -> None:
    """Raise ``StaleControllerEpochError`` for a request of a controller that has been replaced."""
    if requested < known:
        raise StaleControllerEpochError(
            f"controller epoch {requested} is stale: the current controller has epoch {known}"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class RoleChange:
    """The consequences of a decision.

    ``begins_epoch``: the leader records in its log that this epoch begins at the log end offset. ``effects``: effects
    of a new follower, to be carried out before its first request. ``is_new_role``: calls that wait for the partition
    are checked again, and coordinators are loaded or unloaded.
    """

    is_new_role: bool
    begins_epoch: int | None = None
    effects: tuple[Effect, ...] = ()
    outcome: LeaderOutcome = field(default_factory=LeaderOutcome)


class Replica:
    """A partition on this broker. ``role`` is None before the controller's first decision, and once stopped."""

    def __init__(self, partition: str, broker_id: int, settings: ReplicationSettings, high_watermark: int = 0) -> None:
        self.partition = partition
        self.role: Leader | Follower | None = None
        self.settings = settings
        self._id = broker_id
        self._high_watermark = high_watermark
        self._leader_epoch = -1
        self._is_fenced = False

    @property
    def leader_epoch(self) -> int:
        """The last leader epoch of a decision; -1 before the first decision."""
        return self._leader_epoch

    @property
    def high_watermark(self) -> int:
        """The offset before which records are on all replicas in sync; from the checkpoint while there is no role."""
        return self.role.high_watermark if self.role is not None else self._high_watermark

    def decided(self, decision: PartitionDecision, log: LogView, now_ms: int) -> RoleChange:
        """Apply a LeaderAndIsr. Raises ``StaleControllerEpochError`` for a leader epoch that is not newer.

        Raises ``UnknownTopicOrPartitionError`` if the assignment does not name this broker.
        """
        if decision.leader_epoch < self._next_epoch(decision.leader):
            raise StaleControllerEpochError(
                f"{self.partition}: leader epoch {decision.leader_epoch} is stale: this broker knows leader epoch "
                f"{self._leader_epoch}"
            )
        if self._id not in decision.replicas:
            raise UnknownTopicOrPartitionError(
                f"{self.partition}: broker {self._id} is not one of its replicas, {list(decision.replicas)}"
            )
        self._high_watermark = min(self.high_watermark, log.log_end_offset)
        self._leader_epoch, self._is_fenced = decision.leader_epoch, False
        if decision.leader == self._id:
            return self._lead(decision, log, now_ms)
        is_new_role = not isinstance(self.role, Follower) or self.role.leader != decision.leader
        follower = Follower(decision, log, self.settings, self._high_watermark)
        self.role = follower
        return RoleChange(is_new_role=is_new_role, effects=follower.begin())

    def _next_epoch(self, leader: int) -> int:
        """Return the lowest leader epoch in which ``leader`` may lead from now on."""
        may_resume = self._is_fenced and leader == self._id
        return self._leader_epoch if may_resume else self._leader_epoch + 1

    def _lead(self, decision: PartitionDecision, log: LogView, now_ms: int) -> RoleChange:
        is_new_role = not isinstance(self.role, Leader)
        leader = (
            self.role
            if isinstance(self.role, Leader)
            else Leader(self.partition, self._id, self.settings, self._high_watermark)
        )
        self.role = leader
        outcome = leader.decided(decision, log.log_end_offset, now_ms)
        return RoleChange(is_new_role=is_new_role, begins_epoch=decision.leader_epoch, outcome=outcome)

    def stopped(self, leader_epoch: int) -> None:
        """Apply a StopReplica. Raises ``FencedLeaderEpochError`` if it is older than the last LeaderAndIsr."""
        if leader_epoch not in (NO_EPOCH, EPOCH_DURING_DELETE) and leader_epoch < self._leader_epoch:
            raise FencedLeaderEpochError(
                f"{self.partition}: leader epoch {leader_epoch} is stale: this broker knows leader epoch "
                f"{self._leader_epoch}"
            )
        self._high_watermark = self.high_watermark
        self.role, self._is_fenced = None, False

    def fenced(self) -> None:
        """Stop leading until the controller decides again, because the controller considers this broker dead."""
        if isinstance(self.role, Leader):
            self.stopped(NO_EPOCH)
            self._is_fenced = True

    def leading(self, requested_epoch: int | None) -> Leader:
        """Return the leader's side, for a request with leader epoch ``requested_epoch`` or None.

        Raises ``NotLeaderError``, ``FencedLeaderEpochError``, ``UnknownLeaderEpochError``.
        """
        check_leader_epoch(self.partition, self._leader_epoch, requested_epoch)
        if not isinstance(self.role, Leader):
            raise NotLeaderError(f"broker {self._id} does not lead {self.partition}: fetch the metadata again")
        return self.role
