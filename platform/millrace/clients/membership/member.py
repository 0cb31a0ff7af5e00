"""Driver of the member state machine.

A request thread and the caller's polls drive it.

Invariants:

- The state is replaced under the lock; no call or callback is made under it.
- Only the background thread makes requests, one at a time; after ``stop`` it begins none, but may still end a look-up.
- Assignments change only in the caller's thread (``poll``, ``leave``), through ``Hands``.
"""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, Protocol

from millrace.clients.assignors import Assignor
from millrace.clients.connections import Connections
from millrace.clients.membership.coordinator import Coordinator
from millrace.clients.membership.protocol import (
    decode_assignment,
    decode_members,
    encode_assignment,
    encode_subscription,
)
from millrace.clients.membership.requests import (
    Changed,
    GroupMember,
    Heartbeat,
    Join,
    Joined,
    Leave,
    Prepare,
    Request,
    Sync,
)
from millrace.clients.membership.state import Membership, Phase, Timing
from millrace.clients.model import ConsumerGroupMetadata, TopicPartition
from millrace.clients.signal import Signal
from millrace.clients.subscription import Subscription, TopicLayout, fetch_layout, fetch_topics
from millrace.clients.transport import PendingCall, unary
from millrace.config.client import ConsumerConfig
from millrace.consumer_protocol import PROTOCOL_TYPE
from millrace.errors import (
    ClientClosedError,
    MillraceError,
    RebalanceInProgressError,
    UnsupportedAssignorError,
    WakeupError,
)
from millrace.protocol import millrace_pb2 as pb
from millrace.protocol.item_errors import error_in

logger = logging.getLogger(__name__)

_ANSWER_SLACK_S: Final = 5.0
"""Time that a join may take beyond the group's rebalance timeout, as in Kafka."""
_WATCH_MS: Final = 10_000


class Hands(Protocol):
    """Consumer interface for assignment changes; called in the consumer's thread."""

    def give_up(self, prepare: Prepare) -> None:
        """Call the listener, then stop reading these partitions."""
        ...

    def take(self, changed: Changed) -> None:
        """Call the listener, and read the new assignment."""
        ...


class Member:
    """Membership of one consumer. ``subscribe`` starts it; call ``poll`` often, and ``leave`` at the end."""

    def __init__(
        self, connections: Connections, coordinator: Coordinator, signal: Signal, assignors: Sequence[Assignor]
    ) -> None:
        config = connections.config
        assert isinstance(config, ConsumerConfig)
        self._config = config
        self._connections = connections
        self._coordinator = coordinator
        self._signal = signal
        self._assignors = {assignor.name: assignor for assignor in assignors}
        self._condition = threading.Condition()
        self._state = Membership(
            timing=_timing(config),
            instance_id=config.group_instance_id,
            # If one assignor is eager, all partitions are revoked first (Kafka's RebalanceProtocol).
            is_cooperative=all(assignor.is_cooperative for assignor in assignors),
        )
        self._subscription = Subscription()
        self._previous: tuple[frozenset[TopicPartition], int] = (frozenset(), -1)
        self._shared_out: TopicLayout | None = None
        # As in Kafka, retry.backoff.ms limits the look-ups also with metadata.max.age.ms=0.
        self._watch_interval_s = max(config.metadata_max_age_ms, config.retry_backoff_ms) / 1000
        self._watch_at = 0.0
        self._thread: threading.Thread | None = None
        self._call: PendingCall[Any] | None = None
        self._is_stopping = False

    # --- the caller's thread --------------------------------------------------------------------------------------

    def subscribe(self, subscription: Subscription, found: Iterable[pb.Topic]) -> None:
        """Subscribe to these topics, of which ``found`` exist."""
        topics = subscription.matching(found)
        with self._condition:
            self._subscription = subscription
            self._state = self._state.subscribed(topics)
            self._watch_at = time.monotonic() + self._watch_interval_s
            self._condition.notify_all()
        if self._thread is None:
            self._is_stopping = False
            self._thread = threading.Thread(target=self._run, name="millrace-member", daemon=True)
            self._thread.start()

    def poll(self, hands: Hands) -> None:
        """Record the poll, and change the assignment if necessary.

        Raises fatal errors of the group, and the listener's exceptions after the assignment has changed.
        """
        while True:
            with self._condition:
                failure, changed = self._state.failure, self._state.changed
                if failure is not None:
                    self._state = self._state.took_failure()
                    self._condition.notify_all()
                    raise failure
                prepare = None
                if changed is not None:
                    self._state = self._state.took_changes()
                else:
                    self._state, prepare = self._state.polled(time.monotonic())
                    self._condition.notify_all()
            if changed is not None:
                hands.take(changed)
            elif prepare is not None:
                self._give_up(hands, prepare)
            else:
                return

    def _give_up(self, hands: Hands, prepare: Prepare) -> None:
        try:
            hands.give_up(prepare)
        finally:
            with self._condition:
                self._state = self._state.prepared(prepare)
                self._condition.notify_all()

    @property
    def is_rebalancing(self) -> bool:
        """True if the assignment may be about to change."""
        return self._state.is_rebalancing

    @property
    def metadata(self) -> ConsumerGroupMetadata:
        """Group metadata of this member."""
        state = self._state
        return ConsumerGroupMetadata(
            group_id=self._coordinator.group_id,
            generation_id=state.generation,
            member_id=state.member_id if state.has_group else "",
            group_instance_id=self._config.group_instance_id,
        )

    def committing(self) -> ConsumerGroupMetadata | None:
        """Return the group metadata for a commit; ``None`` if the member is no longer in the group.

        Raises ``RebalanceInProgressError`` while the member joins a generation that it does not know yet.
        """
        state = self._state
        if state.can_commit:
            return self.metadata
        if state.phase in (Phase.JOINING, Phase.SYNCING):
            raise RebalanceInProgressError(
                "the group rebalances: poll until the rebalance is complete, then commit the offsets of the "
                "partitions that are still assigned"
            )
        return None

    def commit_refused(self, error: MillraceError, who: ConsumerGroupMetadata) -> None:
        """Apply the refusal of a commit to the membership."""
        with self._condition:
            self._state = self._state.commit_failed(error, who.generation_id, who.member_id)
            self._condition.notify_all()

    def rejoin(self, reason: str) -> None:
        """Request a rebalance (Kafka's ``enforceRebalance``)."""
        with self._condition:
            self._state = self._state.asked_to_rejoin(reason)
            self._condition.notify_all()

    def leave(self, hands: Hands, reason: str, timeout_s: float) -> None:
        """Revoke all partitions, leave the group unless the member is static, and end the thread.

        Waits at most ``timeout_s`` for the thread and the coordinator together. The member cannot be used again.
        """
        deadline = time.monotonic() + timeout_s
        self._stop(timeout_s)
        state = self._state
        try:
            if state.changed is not None:
                hands.take(state.changed)
            if state.owned:
                is_mine = state.has_group
                hands.give_up(Prepare(revoked=state.owned) if is_mine else Prepare(lost=state.owned))
        finally:
            member_id = self._state.member_id
            with self._condition:
                self._state = self._state.left()
            if member_id and not self._config.group_instance_id:
                self._say_goodbye(Leave(member_id=member_id, reason=reason), deadline - time.monotonic())

    def _say_goodbye(self, leave: Leave, timeout_s: float) -> None:
        try:
            self._coordinator.call(
                lambda stub: stub.LeaveGroup, self._leave_request(leave), timeout_ms=max(int(timeout_s * 1000), 1)
            )
        except WakeupError:
            self._signal.wakeup()  # it takes effect at the next wait
        except MillraceError as error:
            logger.warning("leaving group %s: %s", self._coordinator.group_id, error.message)

    def _stop(self, timeout_s: float) -> None:
        with self._condition:
            self._is_stopping = True
            call = self._call
            self._condition.notify_all()
        if call is not None:
            call.cancel()
        if self._thread is not None:
            self._thread.join(timeout_s)  # a look-up, of the coordinator or of topics, cannot be cancelled
            self._thread = None

    # --- the background thread ------------------------------------------------------------------------------------

    def _run(self) -> None:
        while True:
            with self._condition:
                if self._is_stopping or self._connections.is_closed:
                    return
                now = time.monotonic()
                before = self._state
                self._state, request = self._state.request(now)
                if self._state.session_expired(now):
                    self._coordinator.forget()
                if request is None and self._state is before and now < self._watch_at:
                    self._condition.wait(min(self._state.next_request_at(), self._watch_at, now + 3600) - now)
                    continue
            try:
                if request is not None:
                    self._make(request)
                if time.monotonic() >= self._watch_at:
                    self._watch()
            except MillraceError as error:  # the client was closed, or no broker answered about the topics
                logger.debug("group %s: %s", self._coordinator.group_id, error.message)
            self._signal.ring()

    def _make(self, request: Request) -> None:
        try:
            match request:
                case Join():
                    event = self._join(request)
                case Sync():
                    event = self._sync(request)
                case Heartbeat():
                    event = self._heartbeat(request)
                case Leave():
                    logger.warning("leaving group %s: %s", self._coordinator.group_id, request.reason)
                    self._ask(lambda stub: stub.LeaveGroup, self._leave_request(request))
                    return
        except _Refused as refusal:
            self._failed(request, refusal.error, refusal.member_id)
        except MillraceError as error:
            self._coordinator.notice(error)
            self._failed(request, error)
        except Exception as error:  # an assignor's error, or a bug here: the caller's poll raises it
            logger.exception("group %s", self._coordinator.group_id)
            self._failed(request, MillraceError(f"{type(request).__name__} failed: {error!r}"))
        else:
            with self._condition:
                self._state = event(self._state)

    def _failed(self, request: Request, error: MillraceError, member_id: str = "") -> None:
        logger.debug("group %s: %s: %s", self._coordinator.group_id, type(request).__name__, error.message)
        with self._condition:
            if not self._is_stopping:
                self._state = self._state.failed(request, error, time.monotonic(), member_id=member_id)

    def _ask(self, method: Callable[[Any], Any], request: Any, timeout_s: float | None = None) -> Any:
        address = self._coordinator.address(self._config.request_timeout_ms)
        if self._is_stopping:
            raise ClientClosedError("the consumer leaves the group")
        call = self._connections.begin(
            unary(method),
            request,
            address=address,
            timeout_s=timeout_s or self._config.request_timeout_ms / 1000,
            cancellable=True,
        )
        with self._condition:
            self._call = call
            is_stopping = self._is_stopping
        if is_stopping:
            call.cancel()
        try:
            return call.result()
        finally:
            with self._condition:
                self._call = None

    def _join(self, join: Join) -> _Event:
        protocols = [
            pb.JoinGroupRequest.Protocol(name=name, metadata=self._subscription_of(assignor, join))
            for name, assignor in self._assignors.items()
        ]
        request = pb.JoinGroupRequest(
            group_id=self._coordinator.group_id,
            session_timeout_ms=self._config.session_timeout_ms,
            rebalance_timeout_ms=self._config.max_poll_interval_ms,
            member_id=join.member_id,
            group_instance_id=self._config.group_instance_id,
            protocol_type=PROTOCOL_TYPE,
            protocols=protocols,
            reason=join.reason,
        )
        answer: pb.JoinGroupResponse = self._ask(lambda stub: stub.JoinGroup, request, self._rebalance_s())
        error = error_in(answer.error)
        if error is not None:
            raise _Refused(error, answer.member_id)
        joined = Joined(
            generation=answer.generation_id,
            member_id=answer.member_id,
            protocol=answer.protocol_name,
            is_leader=answer.leader == answer.member_id,
            skip_assignment=answer.skip_assignment,
            members=tuple(
                GroupMember(
                    member_id=member.member_id,
                    group_instance_id=member.group_instance_id,
                    metadata=member.metadata,
                )
                for member in answer.members
            ),
        )
        return lambda state: state.join_answered(join, joined, time.monotonic())

    def _subscription_of(self, assignor: Assignor, join: Join) -> bytes:
        previous, generation = self._previous
        remembered = assignor.user_data(sorted(previous), generation)
        return encode_subscription(
            join.topics, join.owned, join.generation, user_data=remembered, rack=self._config.client_rack
        )

    def _rebalance_s(self) -> float:
        return max(self._config.request_timeout_ms, self._config.max_poll_interval_ms) / 1000 + _ANSWER_SLACK_S

    def _sync(self, sync: Sync) -> _Event:
        joined = sync.joined
        assignments = self._share_out(joined) if joined.is_leader else {}
        if not joined.is_leader:
            self._shared_out = None
        request = pb.SyncGroupRequest(
            group_id=self._coordinator.group_id,
            generation_id=joined.generation,
            member_id=joined.member_id,
            group_instance_id=self._config.group_instance_id,
            protocol_type=PROTOCOL_TYPE,
            protocol_name=joined.protocol,
            assignments=[
                pb.SyncGroupRequest.Assignment(member_id=member_id, assignment=encode_assignment(partitions))
                for member_id, partitions in assignments.items()
            ],
        )
        answer: pb.SyncGroupResponse = self._ask(lambda stub: stub.SyncGroup, request, self._rebalance_s())
        assigned = decode_assignment(answer.assignment)
        self._previous = (assigned, joined.generation)
        logger.info(
            "group %s, generation %d: %d partitions", self._coordinator.group_id, joined.generation, len(assigned)
        )
        return lambda state: state.sync_answered(sync, assigned, time.monotonic())

    def _share_out(self, joined: Joined) -> Mapping[str, list[TopicPartition]]:
        """Compute the assignment as the leader, and remember the topics, to notice changes."""
        assignor = self._assignors.get(joined.protocol)
        if assignor is None:
            raise UnsupportedAssignorError(
                f"the group chose the assignor {joined.protocol!r}, which this member does not have"
            )
        members = decode_members(joined.members)
        topics = frozenset[str]().union(*(member.topics for member in members))
        layout = fetch_layout(self._connections, topics)
        self._shared_out = layout.as_seen_from(self._config.client_rack)
        # A leader that returned under its instance id assigns nothing, it only watches the topics (KIP-814).
        return {} if joined.skip_assignment else assignor.assign(layout.counts, members, layout.racks)

    def _heartbeat(self, heartbeat: Heartbeat) -> _Event:
        request = pb.HeartbeatRequest(
            group_id=self._coordinator.group_id,
            generation_id=heartbeat.generation,
            member_id=heartbeat.member_id,
            group_instance_id=self._config.group_instance_id,
        )
        timeout_ms = min(self._config.request_timeout_ms, self._config.session_timeout_ms)
        self._ask(lambda stub: stub.Heartbeat, request, timeout_ms / 1000)
        return lambda state: state.heartbeat_answered(heartbeat, time.monotonic())

    def _leave_request(self, leave: Leave) -> pb.LeaveGroupRequest:
        member = pb.LeaveGroupRequest.Member(member_id=leave.member_id, reason=leave.reason)
        return pb.LeaveGroupRequest(group_id=self._coordinator.group_id, members=[member])

    def _watch(self) -> None:
        """Check for changed topics: each member for its pattern, the leader for all."""
        self._watch_at = time.monotonic() + self._watch_interval_s
        subscription = self._subscription
        if subscription.pattern is not None:
            topics = subscription.matching(fetch_topics(self._connections, None, _WATCH_MS))
            with self._condition:
                if subscription is self._subscription:
                    self._state = self._state.subscribed(topics)
        shared_out = self._shared_out
        if shared_out is not None:
            layout = fetch_layout(self._connections, shared_out.counts, _WATCH_MS)
            if shared_out != layout.as_seen_from(self._config.client_rack):
                self._shared_out = None
                self.rejoin("the topics' partitions have changed")

    def look_at_topics(self) -> None:
        """Check the topics now, because a change was noticed."""
        with self._condition:
            self._watch_at = 0.0
            self._condition.notify_all()


_Event = Callable[[Membership], Membership]


class _Refused(Exception):  # noqa: N818 - never leaves this module
    """Error response of the coordinator.

    ``member_id`` is the member id for the next join.
    """

    def __init__(self, error: MillraceError, member_id: str) -> None:
        super().__init__(error)
        self.error = error
        self.member_id = member_id


def _timing(config: ConsumerConfig) -> Timing:
    return Timing(
        session_timeout_s=config.session_timeout_ms / 1000,
        heartbeat_interval_s=config.heartbeat_interval_ms / 1000,
        max_poll_interval_s=config.max_poll_interval_ms / 1000,
        retry_backoff_s=config.retry_backoff_ms / 1000,
        retry_backoff_max_s=config.retry_backoff_max_ms / 1000,
        jitter=random.uniform(0.8, 1.2),
    )
