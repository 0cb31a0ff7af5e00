"""All replicas of this broker, Kafka's ``ReplicaManager`` and ``Partition``.

Invariants

- The controller's requests are handled one after the other, each completely. Those of an older controller do nothing.
- No request of the controller is handled after ``close``, so that the logs do not change while they are closed.
- A partition's state machine is called in the event loop, or by a thread that holds the partition's lock.
- The effects of a state machine are carried out before its next call. Only a call to the controller goes on longer; its
  answer comes back as an event.
- A high watermark that has risen is set in the log first, and then wakes the calls that wait for it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID

from millrace.config.broker import BrokerConfig
from millrace.errors import BrokerUnavailableError, MillraceError
from millrace_broker.decisions import (
    LeaderAndIsrRequest,
    LeaderAndIsrState,
    StopReplicaRequest,
    TopicPartition,
    UpdateMetadataRequest,
)
from millrace_broker.log import LogManager, PartitionLog
from millrace_broker.log.read_threads import LogReads
from millrace_broker.metadata import LiveBroker, TopicCatalog, TopicInfo
from millrace_broker.network import Peers
from millrace_broker.purgatory import PartitionKey, Timer
from millrace_broker.quotas import Lease
from millrace_broker.replication.core import (
    UNKNOWN_EPOCH,
    Leader,
    LeaderOutcome,
    Replica,
    ReplicationSettings,
    RoleChange,
    check_controller_epoch,
    preferred_read_replica,
)
from millrace_broker.replication.runtime.applying import carry_out_all
from millrace_broker.replication.runtime.delayed_produce import DelayedProduce
from millrace_broker.replication.runtime.hosted import HostedReplica
from millrace_broker.replication.runtime.isr_changes import AlterPartition, IsrChanges
from millrace_broker.replication.runtime.replica_fetchers import Fetchers
from millrace_broker.replication.runtime.replica_logs import ReplicaLogs
from millrace_broker.replication.runtime.serving import FollowerService
from millrace_broker.replication.runtime.throttles import Throttles
from millrace_broker.replication.runtime.views import ReplicationStatistics, statistics_of
from millrace_broker.replication.runtime.waiters import Waiters
from millrace_broker.runtime import BackgroundTasks, Clock, Executors

if TYPE_CHECKING:
    from millrace.protocol import millrace_pb2 as pb
    from millrace.protocol.fetch_response import FetchAnswer

_logger: Final = logging.getLogger(__name__)

RoleListener = Callable[[int], None]
"""Called with the number of a partition when this broker begins or ceases to lead it."""

_EPOCH_OF_TIME_MS: Final = 10**12
"""Added to the monotonic clock, so that a replica of unknown progress (caught up at 0) counts as lagging."""


class ReplicaManager:
    """The replicas of this broker. For the event loop's thread.

    The cluster member sets ``alter_partition``; without it the ISR does not change.
    """

    def __init__(
        self,
        config: BrokerConfig,
        *,
        clock: Clock,
        timer: Timer,
        executors: Executors,
        catalog: TopicCatalog,
        logs: LogManager,
        reads: LogReads,
        peers: Peers,
        waiters: Waiters,
    ) -> None:
        self._config: Final = config
        self._clock: Final = clock
        self._executors: Final = executors
        self._catalog: Final = catalog
        self._logs: Final = logs
        self._replica_logs: Final = ReplicaLogs(catalog, logs)
        self._waiters: Final = waiters
        self._hosted: Final[dict[PartitionKey, HostedReplica]] = {}
        self._controller_epoch = 0
        self.broker_epoch = UNKNOWN_EPOCH
        """This broker's registration, to which the controller sent the last roles."""
        self._is_first_request = True
        self._is_closed = False
        self._deciding: Final = asyncio.Lock()
        self.waiting: Final = DelayedProduce(timer)
        """The calls that wait for replicas."""
        self.alter_partition: AlterPartition | None = None
        self._isr: Final = IsrChanges(self.waiting, self.now_ms, self.follow, lambda: self.alter_partition)
        self._service: Final = FollowerService(config, executors=executors, reads=reads, logs=logs, replicas=self)
        self.leadership_checks: Final = self._service.checks
        """Checks that this broker still leads."""
        self._fetchers: Final = Fetchers(config, executors=executors, logs=logs, peers=peers, replicas=self)
        self._alive: frozenset[int] | None = None
        self._tasks: Final = BackgroundTasks()
        self._role_listeners: Final[dict[str, RoleListener]] = {}
        self.throttles: Final = Throttles(config.broker_id, clock.monotonic)

    # --- start and close -------------------------------------------------------------------------------------

    def start(self) -> None:
        """Start the periodic work."""
        config = self._config
        self._begin(self._shrink_isrs(config.replica_lag_time_max_ms / 2000))
        self._begin(self._checkpoint(config.replica_high_watermark_checkpoint_interval_ms / 1000))

    def release(self) -> None:
        """Answer all waiting calls, because the broker is about to stop."""
        self.waiting.close()
        self._service.close()

    async def close(self) -> None:
        """Stop the fetchers and the periodic work, and refuse the controller's requests.

        High watermarks are checkpointed when the logs are closed.
        """
        self.release()
        async with self._deciding:
            self._is_closed = True
        await self._fetchers.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _begin(self, work: Any) -> None:
        self._tasks.start(work).add_done_callback(_log_failure)

    async def _shrink_isrs(self, interval_s: float) -> None:
        while True:
            await asyncio.sleep(interval_s)
            for replica in list(self._hosted.values()):
                try:
                    if isinstance(leader := replica.machine.role, Leader):
                        self.follow(replica, leader.shrink_isr(self.now_ms()))
                except Exception:
                    _logger.exception("%s: the check for lagging followers failed", replica.name)

    async def _checkpoint(self, interval_s: float) -> None:
        while True:
            await asyncio.sleep(interval_s)
            if any(not replica.is_alone for replica in self._hosted.values()):
                try:
                    await self._executors.run_io(self._logs.checkpoint_watermarks)
                except Exception:
                    _logger.exception("high watermarks could not be checkpointed; the broker tries again")

    def now_ms(self) -> int:
        """Return the time for state machines, in ms."""
        return _EPOCH_OF_TIME_MS + round(self._clock.monotonic() * 1000)

    @contextlib.asynccontextmanager
    async def alone(self, keys: Iterable[PartitionKey]) -> AsyncIterator[None]:
        """Hold the locks of partitions."""
        async with contextlib.AsyncExitStack() as stack:
            for key in sorted(set(keys)):  # one order for all callers avoids deadlocks
                await stack.enter_async_context(self._waiters.locks[key])
            yield

    # --- look-up ---------------------------------------------------------------------------------------------

    def find(self, topic: str, partition: int) -> HostedReplica | None:
        """Return the replica on this broker; None before a controller has assigned it."""
        return self._hosted.get((topic, partition))

    def hosted(self) -> Collection[HostedReplica]:
        """Return all replicas that a controller has assigned to this broker."""
        return self._hosted.values()

    def leads(self, topic: str, partition: int) -> bool:
        """Return whether this broker leads a partition by the controller's decision."""
        replica = self._hosted.get((topic, partition))
        return replica is not None and replica.leads

    def statistics(self) -> ReplicationStatistics:
        """Return the present numbers."""
        return statistics_of(
            self._hosted, shrinks=self._isr.shrinks, expands=self._isr.expands, waiting=self.waiting.statistics()
        )

    # --- requests of the controller --------------------------------------------------------------------------

    async def become(
        self, request: LeaderAndIsrRequest, marked: Mapping[str, TopicInfo]
    ) -> dict[TopicPartition, MillraceError | None]:
        """Apply a LeaderAndIsr. Returns an error for each partition, or None if it succeeded.

        ``marked`` are topics of the request that are marked for deletion, and therefore not in the catalog.

        Raises ``StaleControllerEpochError`` for a request of a controller that has been replaced, and
        ``BrokerUnavailableError`` after ``close``.
        """
        async with self._deciding:
            self._check_controller(request.controller_epoch)
            self.broker_epoch = request.broker_epoch
            self._name_strays(request)
            found = await self._executors.run_io(self._replica_logs.find, request, marked)
            answers: dict[TopicPartition, MillraceError | None] = {
                each: log for each, log in found.items() if isinstance(log, MillraceError)
            }
            logs = {each: log for each, log in found.items() if isinstance(log, PartitionLog)}
            changed: dict[TopicPartition, tuple[HostedReplica, RoleChange]] = {}
            async with self.alone(logs):
                for partition, log in logs.items():
                    topic_id = request.topic_ids.get(partition.topic, log.topic_id)
                    try:
                        changed[partition] = self._decide(
                            partition, topic_id, log, request.partitions[partition], request.controller_epoch
                        )
                    except MillraceError as error:
                        answers[partition] = error
                self._service.roles_changed()
                failed = await self._carry_out(changed.values())
            for partition in changed:
                answers[partition] = failed.get(partition)
            self._go_on(changed.values())
            return answers

    def _check_controller(self, epoch: int) -> None:
        if self._is_closed:
            raise BrokerUnavailableError(f"broker {self._config.broker_id} stops: its logs are being closed")
        check_controller_epoch(self._controller_epoch, epoch)
        self._controller_epoch = epoch

    def _name_strays(self, request: LeaderAndIsrRequest) -> None:
        """Log the partitions on disk that the controller's first request does not name."""
        if not self._is_first_request:
            return
        self._is_first_request = False
        for log in self._logs.logs():
            if TopicPartition(log.topic, log.partition) not in request.partitions:
                _logger.warning("the controller does not assign the partition of %s to this broker", log.directory)

    def _decide(
        self,
        partition: TopicPartition,
        topic_id: UUID,
        log: PartitionLog,
        state: LeaderAndIsrState,
        controller_epoch: int,
    ) -> tuple[HostedReplica, RoleChange]:
        """Let the state machine decide. The caller holds the partition's lock."""
        key = (partition.topic, partition.partition)
        replica = self._hosted.get(key)
        if replica is None or replica.log is not log:
            watermark = self._logs.checkpointed_watermark(*key)
            machine = Replica(str(partition), self._config.broker_id, self._settings(log), watermark)
            replica = HostedReplica(key, topic_id, log, machine)
        replica.note_watermark(self.now_ms())
        change = replica.machine.decided(state.decision(controller_epoch), log, self.now_ms())
        self._hosted[key] = replica
        log.is_led_here = change.begins_epoch is not None
        self._fetchers.unfollow(key)
        if change.begins_epoch is not None:
            self._lead(replica, change.begins_epoch)
        else:
            replica.is_alone, replica.followers = False, ()
            replica.unread.clear()
            log.hold_watermark(replica.machine.high_watermark)
        return replica, change

    def _lead(self, replica: HostedReplica, epoch: int) -> None:
        leader, log = replica.leader, replica.log
        leader.know_alive(self.is_alive)
        log.begin_epoch(epoch)
        replica.followers = tuple(sorted(leader.followers))
        replica.is_alone = not replica.followers and not leader.leaving
        replica.note_unread()
        if replica.is_alone:
            log.release_watermark()
        else:
            log.hold_watermark(leader.high_watermark)

    async def _carry_out(
        self, changed: Iterable[tuple[HostedReplica, RoleChange]]
    ) -> dict[PartitionKey, MillraceError]:
        wanted = [(replica, change.effects) for replica, change in changed if change.effects]
        if not wanted:
            return {}
        return await self._executors.to_the_end(self._executors.run_io(carry_out_all, self._logs, wanted))

    def _go_on(self, changed: Iterable[tuple[HostedReplica, RoleChange]]) -> None:
        """Notify fetchers, waiting calls and listeners of role changes."""
        replicas = [replica for replica, _ in changed]
        for replica, change in changed:
            if change.is_new_role or not replica.leads:
                self._waiters.changed(replica.key)
            self.follow(replica, change.outcome)
            self.waiting.check(replica.key)
            listener = self._role_listeners.get(replica.key[0])
            if listener is not None and change.is_new_role:
                listener(replica.key[1])
        self._fetchers.follow(replicas)
        leading = sum(1 for replica in replicas if replica.leads)
        _logger.info("becomes leader of %d partitions and follower of %d", leading, len(replicas) - leading)

    async def stop(self, request: StopReplicaRequest) -> dict[TopicPartition, MillraceError | None]:
        """Stop replicas and delete those that the request marks. Returns an error or None for each partition.

        Raises ``StaleControllerEpochError``, and ``BrokerUnavailableError`` after ``close``.
        """
        async with self._deciding:
            self._check_controller(request.controller_epoch)
            answers: dict[TopicPartition, MillraceError | None] = {}
            for partition, state in request.partitions.items():
                try:
                    async with self.alone([partition]):
                        await self._stop(partition, state.leader_epoch, is_deleted=state.is_deleted)
                    answers[partition] = None
                except MillraceError as error:
                    answers[partition] = error
            return answers

    async def stop_reassigned(self, request: UpdateMetadataRequest) -> None:
        """Stop replicas that this broker no longer leads or has, as an UpdateMetadata says.

        The controller sends no StopReplica to a broker that it considered dead while its replica was moved. That broker
        would continue as the old leader: requests with ``acks=all`` time out, and records with ``acks=1`` are lost.
        """
        async with self._deciding:
            if self._is_closed:
                return
            for partition, state in request.partitions.items():
                replica = self._hosted.get(partition)
                if replica is None or not replica.is_moved_from(self._config.broker_id, state):
                    continue
                _logger.warning("the controller no longer assigns %s to this broker", replica.name)
                async with self.alone([partition]):
                    await self._stop(partition, state.leadership.leader_epoch, is_deleted=False)

    async def fence(self) -> None:
        """Stop leading all partitions until the controller decides again, because it considers this broker dead."""
        async with self._deciding:
            for replica in [each for each in self._hosted.values() if each.leads]:
                async with self.alone([replica.key]):
                    replica.note_watermark(self.now_ms())
                    replica.machine.fenced()
                    self._give_up_role(replica)

    async def _stop(self, key: TopicPartition, leader_epoch: int, *, is_deleted: bool) -> None:
        replica = self._hosted.get(key)
        if replica is not None:
            replica.note_watermark(self.now_ms())
            replica.machine.stopped(leader_epoch)
            self._give_up_role(replica)
        if is_deleted:
            self._hosted.pop(key, None)
            log = self._logs.get(*key)
            if log is not None:
                topic = self._catalog.topics.get(key.topic)  # the UpdateMetadata of a deleted topic came before
                is_moved = topic is not None and topic.topic_id == log.topic_id
                delete = partial(self._logs.delete_log, *key, has_other_replicas=is_moved)
                await self._executors.to_the_end(self._executors.run_io(delete))

    def _give_up_role(self, replica: HostedReplica) -> None:
        """Drop the replica's role everywhere; the caller holds the partition's lock."""
        self._fetchers.unfollow(replica.key)
        replica.is_alone, replica.followers = False, ()
        replica.log.is_led_here = False
        replica.log.hold_watermark(replica.machine.high_watermark)
        self._service.roles_changed()
        replica.unread.clear()
        self.waiting.check(replica.key)
        self._waiters.changed(replica.key)
        listener = self._role_listeners.get(replica.key[0])
        if listener is not None:
            listener(replica.key[1])

    def listen_to_roles(self, topic: str, listener: RoleListener) -> None:
        """Register a listener for each change of this broker's role in a topic's partitions."""
        self._role_listeners[topic] = listener

    def brokers_alive(self, brokers: frozenset[int]) -> None:
        """Set the live brokers; the other brokers cannot join an ISR, and no call waits for them."""
        is_any_lost = self._alive is None or bool(self._alive - brokers)
        self._alive = brokers
        if is_any_lost:
            for replica in self._hosted.values():
                if isinstance(leader := replica.machine.role, Leader):
                    self.follow(replica, leader.brokers_changed(self.now_ms()))
                    self.waiting.check(replica.key)

    def is_alive(self, broker_id: int) -> bool:
        """Return whether a broker is alive; all brokers count as alive before the first ``brokers_alive``."""
        return self._alive is None or broker_id in self._alive

    # --- leader ----------------------------------------------------------------------------------------------

    def _settings(self, log: PartitionLog) -> ReplicationSettings:
        config = self._config
        return ReplicationSettings(
            replica_lag_time_max_ms=config.replica_lag_time_max_ms,
            min_insync_replicas=log.config.min_insync_replicas,
            replica_fetch_backoff_ms=config.replica_fetch_backoff_ms,
        )

    def topic_changed(self, topic: str) -> None:
        """Apply the changed configuration of a topic."""
        for replica in self._hosted.values():
            if replica.key[0] == topic:
                replica.machine.settings = self._settings(replica.log)
                if isinstance(leader := replica.machine.role, Leader):
                    leader.settings = replica.machine.settings
                    self.follow(replica, leader.appended(replica.log.durable_end, self.now_ms()))

    def appended(self, replica: HostedReplica, size_bytes: int) -> None:
        """Handle an append of this broker to a partition with followers."""
        leader = replica.machine.role
        if not isinstance(leader, Leader):
            return
        replica.add_unread(size_bytes)
        self.follow(replica, leader.appended(replica.log.durable_end, self.now_ms()))
        self._service.appended(replica)

    def announce(self, replica: HostedReplica) -> None:
        """Wake waiting follower fetches for a change of a partition that may come without records."""
        self._service.announce(replica)

    def follow(self, replica: HostedReplica, outcome: LeaderOutcome) -> None:
        """Carry out the consequences of a leader's event."""
        if outcome.has_watermark_risen:
            replica.log.raise_watermark(replica.machine.high_watermark)
            self._service.changed(replica)
            self._waiters.readable(replica.key, replica.log, replica.take_readable_bytes())
            self.waiting.check(replica.key)
            if self._config.replica_selector_class:  # consumers wait for the high watermark at followers
                self.announce(replica)
        if outcome.alter_isr is not None:
            self._begin(self._isr.ask(replica, replica.leader, outcome.alter_isr))
        self._service.checks.look_again()  # the ISR may have changed

    async def fetch(self, request: pb.FetchRequest, lease: Lease) -> FetchAnswer:
        """Answer a follower's fetch (see ``serving``)."""
        return await self._service.fetch(request, lease)

    def preferred_read_replica(
        self,
        replica: HostedReplica,
        client_rack: str,
        fetch_offset: int,
        live_brokers: Callable[[], Sequence[LiveBroker]],
    ) -> int | None:
        """Return the broker that a consumer of a rack reads from instead of this one (KIP-392); None means this one.

        ``live_brokers`` is called only if a rack-aware ``replica.selector.class`` is configured.
        """
        if not client_rack or not self._config.replica_selector_class.endswith("RackAwareReplicaSelector"):
            return None
        racks = {each.broker_id: each.rack for each in live_brokers()}
        leader, followers = replica.leader.views(racks, self.now_ms())
        return preferred_read_replica(
            client_rack, fetch_offset, leader, [each for each in followers if each.broker_id in racks]
        )

    # --- follower --------------------------------------------------------------------------------------------

    def fetched(self, replica: HostedReplica, size_bytes: int) -> None:
        """Wake consumers after a fetch by this follower, because its log or high watermark may have risen."""
        if size_bytes:
            replica.add_unread(size_bytes)
        readable_bytes = replica.take_readable_bytes()
        if readable_bytes:
            self._waiters.readable(replica.key, replica.log, readable_bytes)

    def resize_fetchers(self, count: int) -> None:
        """Apply ``num.replica.fetchers``."""
        if count != self._fetchers.count:
            self._begin(self._fetchers.resize(count))

    # --- throttles -------------------------------------------------------------------------------------------

    def set_throttle_rates(self, *, leader_bytes_per_s: float, follower_bytes_per_s: float) -> None:
        """Set ``leader.`` and ``follower.replication.throttled.rate``; infinity means no throttle."""
        self.throttles.to_followers.bytes_per_s = leader_bytes_per_s
        self.throttles.from_leaders.bytes_per_s = follower_bytes_per_s
        self._service.wake_all()


def _log_failure(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        _logger.error("replication: unexpected failure", exc_info=error)
