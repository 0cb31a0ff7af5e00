"""Group side of a consumer: membership, commits and the rebalance listener.

Invariants:

- Offsets of revoked partitions are committed (with auto commit) before the listener is called. The partitions are
  assigned until the listener has returned.
- No record of a partition is returned before the listener was notified of its assignment.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Mapping

from millrace.clients.assignors import find_assignors
from millrace.clients.consuming.assignment import Assignment
from millrace.clients.consuming.connections import ConsumerConnections
from millrace.clients.consuming.interceptors import ConsumerInterceptors
from millrace.clients.leaders import may_pass
from millrace.clients.membership.commit_queue import AutoCommit
from millrace.clients.membership.commits import Commits, OnCommit, commit_failed
from millrace.clients.membership.coordinator import Coordinator, check_group_id
from millrace.clients.membership.listener import RebalanceListener
from millrace.clients.membership.member import Member
from millrace.clients.membership.requests import Changed, Prepare
from millrace.clients.model import ConsumerGroupMetadata, OffsetAndMetadata, TopicPartition
from millrace.clients.signal import Signal
from millrace.clients.subscription import Subscription, fetch_topics
from millrace.config.client import ConsumerConfig, Isolation
from millrace.errors import (
    BrokerUnavailableError,
    MillraceError,
    RebalanceInProgressError,
    UnknownTopicOrPartitionError,
    WakeupError,
)
from millrace.protocol import millrace_pb2 as pb

logger = logging.getLogger(__name__)

_COMMIT_BEFORE_REBALANCE_S = 5.0
"""Time that a rebalance waits for an auto commit."""
_LOOK_UP_MS_MIN = 1000
"""Minimum timeout of a look-up of topics, even in a poll that does not wait."""
_COMMIT_AT_LEAVE_S = 0.1
"""Time that an auto commit has at least when the consumer leaves the group, also if the timeout has passed."""


class ConsumerGroup:
    """Group operations of a consumer (Kafka's ``ConsumerCoordinator``).

    The consumer is a member of the group, or only commits offsets. The operations run in the caller's thread.
    """

    def __init__(
        self,
        config: ConsumerConfig,
        connections: ConsumerConnections,
        assignment: Assignment,
        signal: Signal,
        interceptors: ConsumerInterceptors,
    ) -> None:
        self._config = config
        self._connections = connections
        self._assignment = assignment
        self._signal = signal
        self._interceptors = interceptors
        self._coordinator = Coordinator(connections, config.group_id)
        self._assignors = find_assignors(config.partition_assignment_strategy)
        self._commits = Commits(connections, self._coordinator, signal, self._refused)
        self._auto_commit = AutoCommit(
            interval_s=config.auto_commit_interval_ms / 1000,
            due_at=time.monotonic() + config.auto_commit_interval_ms / 1000,
        )
        self._member: Member | None = None
        self._subscription: Subscription | None = None
        self._to_begin: Subscription | None = None
        self._unanswered_since: float | None = None
        """Time of the first look-up of the subscribed topics, while none was answered."""
        self._listener = RebalanceListener()
        self._listener_error: BaseException | None = None
        self._leave_by = float("inf")
        self.rebalances = 0
        """Number of rebalances of this member."""

    # --- subscription ---------------------------------------------------------------------------------------------

    @property
    def subscription(self) -> Subscription | None:
        """The current subscription, if any."""
        return self._subscription

    def subscribe(self, subscription: Subscription, listener: RebalanceListener | None) -> None:
        """Join the group at the next poll, or change the subscription."""
        check_group_id(self._config.group_id)
        self._listener = listener or RebalanceListener()
        self._subscription = self._to_begin = subscription
        self._unanswered_since = None

    def unsubscribe(self, reason: str, timeout_s: float) -> None:
        """Leave the group and drop the assignment."""
        member, self._member = self._member, None
        self._subscription = self._to_begin = None
        if member is None:
            self._assignment.replace(())
            return
        self._member = member  # commits within the listener are still this member's
        self._leave_by = time.monotonic() + timeout_s
        try:
            member.leave(self, reason, timeout_s)
        finally:
            self._member, self._leave_by = None, float("inf")
            self._assignment.replace(())
        self._raise_listener_error()

    def rejoin(self, reason: str) -> None:
        """Request a rebalance (Kafka's ``enforceRebalance``)."""
        if self._member is not None:
            self._member.rejoin(reason)

    def poll(self, deadline: float) -> None:
        """Process assignment changes, commit callbacks and auto commits.

        A look-up of topics waits until ``deadline``. If no broker answers, the next poll repeats it, for
        ``socket.connection.setup.timeout.ms`` in all, and then raises ``BrokerUnavailableError``. Raises
        ``UnknownTopicOrPartitionError``, once, for missing topics that are subscribed to by name.
        """
        self._commits.call_back()
        self._commit_automatically()
        if self._to_begin is not None:
            self._begin(self._to_begin, deadline)
        if self._member is not None:
            try:
                self._member.poll(self)
            finally:
                self._raise_listener_error()

    def _begin(self, subscription: Subscription, deadline: float) -> None:
        found = self._topics_of(subscription, deadline)
        if found is None:
            return
        if self._member is None:
            self._member = Member(self._connections, self._coordinator, self._signal, self._assignors)
        self._member.subscribe(subscription, found)
        self._to_begin = None
        missing = sorted(subscription.names - {topic.name for topic in found})
        if missing:
            raise UnknownTopicOrPartitionError(
                f"{', '.join(missing)}: no such topic: create it; later polls wait for it"
            )

    def _topics_of(self, subscription: Subscription, deadline: float) -> list[pb.Topic] | None:
        """Return the existing topics, all of them for a pattern, or ``None`` if no broker answers in time."""
        now = time.monotonic()
        since = self._unanswered_since = self._unanswered_since or now
        left_ms = max(int((deadline - now) * 1000), _LOOK_UP_MS_MIN)
        try:
            return fetch_topics(self._connections, None if subscription.pattern else subscription.names, left_ms)
        except MillraceError as error:
            limit_ms = self._config.default_api_timeout_ms
            if isinstance(error, BrokerUnavailableError):
                limit_ms = self._config.socket_connection_setup_timeout_ms
            # The call has ended up to a backoff before the limit.
            over_at = since + (limit_ms - self._config.retry_backoff_max_ms) / 1000
            if not may_pass(error) or time.monotonic() >= over_at:
                self._unanswered_since = None
                raise
            logger.debug("group %s: the subscribed topics are not known yet: %s", self._config.group_id, error.message)
            return None

    def look_at_topics(self) -> None:
        """Check the topics, because a change was noticed."""
        if self._member is not None:
            self._member.look_at_topics()

    # --- assignment changes (``Hands``) ---------------------------------------------------------------------------

    def give_up(self, prepare: Prepare) -> None:
        """Call the listener, then stop reading these partitions."""
        if prepare.revoked:
            self._tell(lambda: self._commit_before(prepare.revoked))
            self._tell(lambda: self._listener.on_partitions_revoked(sorted(prepare.revoked)))
        if prepare.lost:
            self._tell(lambda: self._listener.on_partitions_lost(sorted(prepare.lost)))
        self._assignment.remove(prepare.revoked | prepare.lost)

    def take(self, changed: Changed) -> None:
        """Call the listener, and read the new assignment."""
        if changed.revoked:
            self._tell(lambda: self._commit_before(changed.revoked))
            self._tell(lambda: self._listener.on_partitions_revoked(sorted(changed.revoked)))
        self._assignment.replace(sorted(changed.owned))
        self.rebalances += 1
        self._tell(lambda: self._listener.on_partitions_assigned(sorted(changed.added)))

    def _tell(self, call: Callable[[], None]) -> None:
        try:
            call()
        except BaseException as error:  # noqa: BLE001 - also an interrupt: raised after the assignment has changed
            self._listener_error = self._listener_error or error

    def _raise_listener_error(self) -> None:
        error, self._listener_error = self._listener_error, None
        if error is not None:
            raise error

    # --- commits --------------------------------------------------------------------------------------------------

    @property
    def metadata(self) -> ConsumerGroupMetadata:
        """Group metadata of this consumer, for a producer's transactions."""
        check_group_id(self._config.group_id)
        if self._member is not None:
            return self._member.metadata
        return ConsumerGroupMetadata(group_id=self._config.group_id, group_instance_id=self._config.group_instance_id)

    def _committing(self) -> ConsumerGroupMetadata:
        if self._member is None:
            return ConsumerGroupMetadata(group_id=self._config.group_id)
        who = self._member.committing()
        if who is None:
            raise commit_failed("the consumer is not a member of the group at the moment")
        return who

    def commit(self, offsets: Mapping[TopicPartition, OffsetAndMetadata], timeout_s: float) -> None:
        """Commit and wait."""
        check_group_id(self._config.group_id)
        if offsets:
            self._commits.commit(offsets, self._committing(), timeout_s)
            self._interceptors.on_commit(offsets)

    def commit_async(self, offsets: Mapping[TopicPartition, OffsetAndMetadata], on_commit: OnCommit | None) -> None:
        """Commit without waiting."""
        check_group_id(self._config.group_id)

        def done(committed: Mapping[TopicPartition, OffsetAndMetadata], error: MillraceError | None) -> None:
            if error is None:
                self._interceptors.on_commit(committed)
            if on_commit is not None:
                on_commit(committed, error)
            elif error is not None:
                logger.warning("group %s: offsets were not committed: %s", self._config.group_id, error.message)

        self._commits.commit_async(offsets, self._committing(), done)

    def committed(
        self, partitions: Collection[TopicPartition], timeout_ms: int | None = None
    ) -> dict[TopicPartition, OffsetAndMetadata]:
        """Return the group's committed offsets; with read_committed it waits for pending transactional offsets."""
        check_group_id(self._config.group_id)
        return self._commits.committed(
            partitions,
            require_stable=self._config.isolation_level is Isolation.READ_COMMITTED,
            timeout_ms=timeout_ms,
        )

    def _refused(self, error: MillraceError, who: ConsumerGroupMetadata) -> None:
        if self._member is not None:
            self._member.commit_refused(error, who)

    @property
    def commits_automatically(self) -> bool:
        """True if polls commit offsets (``enable.auto.commit``)."""
        return self._config.enable_auto_commit and bool(self._config.group_id)

    def _commit_automatically(self) -> None:
        if not self.commits_automatically or not len(self._assignment):
            return
        self._auto_commit, is_due = self._auto_commit.polled(time.monotonic())
        if not is_due or not self._commits.is_idle:
            return
        offsets = self._assignment.consumed()
        try:
            if offsets:
                self.commit_async(offsets, None)
        except RebalanceInProgressError:
            pass  # committed before the partitions are revoked, or at the next poll
        except MillraceError as error:
            logger.warning("group %s: offsets were not committed: %s", self._config.group_id, error.message)

    def _commit_before(self, partitions: Collection[TopicPartition]) -> None:
        if self.commits_automatically:
            left_s = max(self._leave_by - time.monotonic(), _COMMIT_AT_LEAVE_S)
            self.commit_now(self._assignment.consumed(partitions), min(_COMMIT_BEFORE_REBALANCE_S, left_s))

    def commit_now(self, offsets: Mapping[TopicPartition, OffsetAndMetadata], timeout_s: float) -> None:
        """Try to commit within ``timeout_s``; an error is logged."""
        try:
            self.commit(offsets, timeout_s)
        except WakeupError:
            self._signal.wakeup()  # the wake-up is for the next wait
        except MillraceError as error:
            logger.warning("group %s: offsets were not committed: %s", self._config.group_id, error.message)

    def close(self, timeout_s: float) -> None:
        """Commit, leave the group, and call the callbacks of commits."""
        deadline = time.monotonic() + timeout_s
        try:
            if self.commits_automatically and len(self._assignment) and self._member is None:
                self.commit_now(self._assignment.consumed(), max(timeout_s, _COMMIT_AT_LEAVE_S))
            self.unsubscribe("the consumer is closed", timeout_s)
        finally:
            while not self._commits.is_idle and time.monotonic() < deadline:
                serial = self._signal.serial
                if not self._commits.is_idle:
                    self._signal.wait(serial, min(0.1, deadline - time.monotonic()))
            self._commits.close()
            self._commits.call_back()
