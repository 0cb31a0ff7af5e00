"""The leader's side of a partition, Kafka's ``Partition`` and ``Replica``.

The code is pure: the caller passes the time with each event.

Invariants:

* The high watermark never goes back in the life of a ``Leader``, and is never beyond the log end offset.
* The high watermark is not beyond the log end offset of any replica that may be elected. These are the replicas of the
  ISR, and the replicas that the leader has asked to add to the ISR. A replica that a reassignment removes is in the
  ISR until the controller has removed it there too. The leader does not know its progress any more, so the high
  watermark waits. (Kafka's leader does not wait. If its brokers and the controller fail just then, the removed replica
  can be elected, without records that were acknowledged.)
* Each event that may let the high watermark rise is checked for that, because no other event may follow. So the high
  watermark also rises after three other events. An ISR change is refused, a follower's broker is no longer alive, or a
  follower outside the ISR has lagged for too long.
* At most one change of the ISR is in flight. The ISR is the one that the controller has confirmed.

Source: Kafka's ``Partition`` and ``Replica``; KIP-497 (AlterPartition), KIP-966 (the high watermark does not rise while
the ISR is smaller than ``min.insync.replicas``).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field

from millrace.errors import (
    FencedLeaderEpochError,
    IneligibleReplicaError,
    InvalidRequestError,
    InvalidUpdateVersionError,
    MillraceError,
    NewLeaderElectedError,
    NotEnoughReplicasAfterAppendError,
    NotEnoughReplicasError,
    OperationNotAttemptedError,
    ReplicaNotAvailableError,
    UnknownTopicOrPartitionError,
)
from millrace_broker.decisions import PartitionDecision
from millrace_broker.replication.core.model import UNKNOWN_EPOCH, ReplicaProgress, ReplicationSettings
from millrace_broker.replication.core.read_replicas import ReplicaView

_NOT_TAKEN = (OperationNotAttemptedError, IneligibleReplicaError)
_DECIDED_ELSEWHERE = (
    FencedLeaderEpochError,
    InvalidUpdateVersionError,
    InvalidRequestError,
    NewLeaderElectedError,
    UnknownTopicOrPartitionError,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class AlterIsr:
    """An ISR change that the leader asks the controller to confirm.

    The controller refuses the change if the leader epoch or the partition epoch has increased meanwhile. It also
    refuses to add a follower that has another broker epoch than in ``broker_epochs`` (KIP-903).
    """

    isr: tuple[int, ...]
    leader_epoch: int
    partition_epoch: int
    broker_epochs: Mapping[int, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaderOutcome:
    """The consequences of an event.

    ``has_watermark_risen``: calls that wait for the high watermark can be answered. ``alter_isr``: the ISR change to
    ask the controller for.
    """

    has_watermark_risen: bool = False
    alter_isr: AlterIsr | None = None


class Leader:
    """The leader's side of a partition, until another broker leads it."""

    def __init__(self, partition: str, broker_id: int, settings: ReplicationSettings, high_watermark: int) -> None:
        self.partition = partition
        self.settings = settings
        self._id = broker_id
        self._high_watermark = high_watermark
        self._log_end = high_watermark
        self._epoch = -1
        self._epoch_start = 0
        self._partition_epoch = -1
        self._isr: frozenset[int] = frozenset()
        self._leaving: frozenset[int] = frozenset()  # in the ISR, but no longer replicas
        self._asked: AlterIsr | None = None
        self._followers: dict[int, ReplicaProgress] = {}
        self._is_alive: Callable[[int], bool] = lambda _: True

    @property
    def epoch(self) -> int:
        """The leader epoch."""
        return self._epoch

    @property
    def epoch_start(self) -> int:
        """The log end offset at which the leader epoch began."""
        return self._epoch_start

    @property
    def partition_epoch(self) -> int:
        """The version that the next ISR change is based on."""
        return self._partition_epoch

    @property
    def high_watermark(self) -> int:
        """The offset before which records are on all replicas in sync. These records are acknowledged and readable."""
        return self._high_watermark

    @property
    def isr(self) -> frozenset[int]:
        """The ISR that the controller has confirmed."""
        return self._isr

    @property
    def maximal_isr(self) -> frozenset[int]:
        """All replicas that may be in the ISR now: the confirmed ISR, and replicas of an ISR change in flight."""
        return self._isr | frozenset(self._asked.isr) if self._asked else self._isr

    @property
    def followers(self) -> Mapping[int, ReplicaProgress]:
        """The fetch progress of each follower."""
        return dict(self._followers)

    @property
    def leaving(self) -> frozenset[int]:
        """The former replicas that the controller still has to remove from the ISR. The high watermark waits."""
        return self._leaving

    @property
    def min_in_sync(self) -> int:
        """``min.insync.replicas``, or the number of replicas if that is smaller."""
        return min(self.settings.min_insync_replicas, len(self._followers) + 1)

    @property
    def low_watermark(self) -> int:
        """The lowest log start offset of all followers; DeleteRecords waits for it."""
        return min((each.log_start_offset for each in self._followers.values()), default=self._log_end)

    def decided(self, decision: PartitionDecision, log_end: int, now_ms: int) -> LeaderOutcome:
        """Apply a decision of the controller.

        A new epoch begins on the first decision and at each greater leader epoch.
        """
        if decision.partition_epoch < self._partition_epoch:
            return LeaderOutcome()  # the decision is older than an AlterPartition answer that came first
        self._isr, self._asked = frozenset(decision.isr), None
        self._partition_epoch, self._log_end = decision.partition_epoch, log_end
        others = [each for each in decision.replicas if each != self._id]
        self._followers = {each: self._followers.get(each, ReplicaProgress()) for each in others}
        if decision.leader_epoch > self._epoch:
            self._epoch, self._epoch_start = decision.leader_epoch, log_end
            self._followers = {
                each: known.in_new_epoch(log_end, now_ms, is_in_sync=each in self._isr)
                for each, known in self._followers.items()
            }
        self._leaving = self._isr - self._followers.keys() - {self._id}
        return LeaderOutcome(has_watermark_risen=self._raise_watermark(now_ms))

    def know_alive(self, is_alive: Callable[[int], bool]) -> None:
        """Use ``is_alive`` from now on; a follower whose broker is not alive cannot join the ISR."""
        self._is_alive = is_alive

    def check_enough_in_sync(self) -> None:
        """Raise ``NotEnoughReplicasError`` if the ISR is too small to append records with acks=all."""
        if len(self._isr) < self.min_in_sync:
            raise NotEnoughReplicasError(
                f"{self.partition} has {len(self._isr)} replicas in sync, fewer than "
                f"min.insync.replicas={self.min_in_sync}"
            )

    def is_acknowledged(self, end_offset: int) -> bool:
        """Return whether all replicas in sync have the records before ``end_offset``, so that acks=all is fulfilled.

        Raises ``NotEnoughReplicasAfterAppendError`` if they have the records but the ISR has become too small.
        """
        if self._high_watermark < end_offset:
            return False
        if len(self.maximal_isr) < self.min_in_sync:
            raise NotEnoughReplicasAfterAppendError(
                f"the records were appended to {self.partition}, but {len(self.maximal_isr)} replicas are in sync, "
                f"fewer than min.insync.replicas={self.min_in_sync}"
            )
        return True

    def appended(self, log_end: int, now_ms: int) -> LeaderOutcome:
        """Take note that the leader's own log now ends at ``log_end``."""
        self._log_end = log_end
        return LeaderOutcome(has_watermark_risen=self._raise_watermark(now_ms))

    def fetched(
        self, follower: int, fetch_offset: int, log_start_offset: int, now_ms: int, broker_epoch: int = UNKNOWN_EPOCH
    ) -> LeaderOutcome:
        """Take note of a fetch, because the follower has all records before ``fetch_offset``.

        The caller has compared leader epochs before. Raises ``ReplicaNotAvailableError`` for a broker without a
        replica.
        """
        known = self._followers.get(follower)
        if known is None:
            raise ReplicaNotAvailableError(
                f"broker {follower} is not a replica of {self.partition}, whose replicas are "
                f"{sorted(self._followers)} and {self._id}"
            )
        self._followers[follower] = known.after_fetch(
            fetch_offset, log_start_offset, self._log_end, now_ms, broker_epoch
        )
        alter = self._ask(self._isr | {follower}) if self._may_join(follower) else None
        return LeaderOutcome(has_watermark_risen=self._raise_watermark(now_ms), alter_isr=alter)

    def brokers_changed(self, now_ms: int) -> LeaderOutcome:
        """Take note that brokers are no longer alive. The high watermark waits for them only in the ISR."""
        return LeaderOutcome(has_watermark_risen=self._raise_watermark(now_ms))

    def shrink_isr(self, now_ms: int) -> LeaderOutcome:
        """Shrink the ISR: drop followers that lag more than ``replica.lag.time.max.ms``.

        The caller does so every half of that time.
        """
        has_risen = self._raise_watermark(now_ms)  # a follower outside the ISR may have been waited for until now
        if self._asked is not None:
            return LeaderOutcome(has_watermark_risen=has_risen)
        slow = {each for each in self._isr - {self._id} if not self._is_near(each, now_ms)}
        return LeaderOutcome(has_watermark_risen=has_risen, alter_isr=self._ask(self._isr - slow) if slow else None)

    def isr_altered(self, isr: Collection[int], leader_epoch: int, partition_epoch: int, now_ms: int) -> LeaderOutcome:
        """Apply an ISR change that the controller has confirmed.

        Ignore a confirmation of another leader epoch, or of an older partition epoch.
        """
        if leader_epoch != self._epoch or partition_epoch < self._partition_epoch:
            return LeaderOutcome()
        self._isr, self._asked, self._partition_epoch = frozenset(isr), None, partition_epoch
        self._leaving &= self._isr
        return LeaderOutcome(has_watermark_risen=self._raise_watermark(now_ms))  # a lagging replica may have left

    def isr_refused(self, refused: AlterIsr, error: MillraceError, now_ms: int) -> LeaderOutcome:
        """Handle an ISR change that the controller refused or did not answer.

        Depending on the error the leader asks again, drops the change, or waits for the controller's decision.
        """
        if refused != self._asked:
            return LeaderOutcome()
        if isinstance(error, _NOT_TAKEN):
            self._asked = None
            return LeaderOutcome(has_watermark_risen=self._raise_watermark(now_ms))
        if isinstance(error, _DECIDED_ELSEWHERE):
            return LeaderOutcome()  # the change stays in flight; only LeaderAndIsr reports the ISR now
        return LeaderOutcome(alter_isr=refused)

    def reachable_watermark(self, now_ms: int) -> int:
        """Return the offset to which the high watermark may rise; after each event it is there."""
        if self._high_watermark >= self._log_end or self._leaving or len(self._isr) < self.min_in_sync:
            return self._high_watermark
        must_have = [
            known.log_end_offset
            for each, known in self._followers.items()
            if each in self.maximal_isr or (self._is_near(each, now_ms) and self._is_alive(each))
        ]
        return max(self._high_watermark, min([self._log_end, *must_have]))

    def views(self, racks: Mapping[int, str], now_ms: int) -> tuple[ReplicaView, list[ReplicaView]]:
        """Return the leader and its followers as ``read_replicas`` needs them."""
        own = ReplicaProgress(log_start_offset=0, log_end_offset=self._log_end, last_caught_up_ms=now_ms)
        return self._view(self._id, own, racks, now_ms), [
            self._view(each, known, racks, now_ms) for each, known in self._followers.items()
        ]

    def _view(self, broker_id: int, known: ReplicaProgress, racks: Mapping[int, str], now_ms: int) -> ReplicaView:
        return ReplicaView(
            broker_id=broker_id,
            rack=racks.get(broker_id, ""),
            log_start_offset=known.log_start_offset,
            log_end_offset=known.log_end_offset,
            caught_up_ms_ago=max(0, now_ms - known.last_caught_up_ms),
            is_in_sync=broker_id in self._isr,
        )

    def _is_near(self, follower: int, now_ms: int) -> bool:
        known = self._followers.get(follower, ReplicaProgress())
        return known.is_caught_up(self._log_end, now_ms, self.settings.replica_lag_time_max_ms)

    def _may_join(self, follower: int) -> bool:
        if self._asked is not None or follower in self._isr or not self._is_alive(follower):
            return False
        # A follower that has only reached the high watermark may have records of an earlier epoch that this leader
        # never had.
        return self._followers[follower].log_end_offset >= max(self._high_watermark, self._epoch_start)

    def _ask(self, isr: frozenset[int]) -> AlterIsr:
        epochs = {each: self._followers[each].broker_epoch for each in isr - self._isr}
        self._asked = AlterIsr(
            isr=tuple(sorted(isr)),
            leader_epoch=self._epoch,
            partition_epoch=self._partition_epoch,
            broker_epochs={each: epoch for each, epoch in epochs.items() if epoch != UNKNOWN_EPOCH},
        )
        return self._asked

    def _raise_watermark(self, now_ms: int) -> bool:
        before, self._high_watermark = self._high_watermark, self.reachable_watermark(now_ms)
        return self._high_watermark > before
