"""Session, registration and requests of one member of a cluster.

A session is opened, and the broker registers under it, which gives it a new broker epoch. The broker then watches for
changed configurations and runs for controller. When ZooKeeper ends the session, the controller resigns. The broker
repeats these steps under the next session, until they succeed.

A broker without ``zookeeper.connect`` is the only member of its cluster. It does the same on the embedded store.

Invariants

* A request of an older controller epoch, or for an earlier broker epoch, is refused.
* A broker whose registration is removed while its session lives was considered dead. It stops leading at once, and
  registers again under that session, in a new broker epoch. Then the controller sends it its replicas again.
* Blocking calls run in the administration thread. Sessions of ZooKeeper are opened, registered and closed in other
  threads, because a call in the administration thread may wait for a session.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Final

from millrace.config.broker import BrokerConfig
from millrace.config.listeners import Listener
from millrace.config.topic import TopicConfig
from millrace.coordination import (
    ConnectionLossError,
    Coordination,
    CoordinationError,
    OnLoop,
    WatchEvent,
    paths,
)
from millrace.coordination.nodes import BrokerNode
from millrace.coordination.notices import LogDirEventNode
from millrace.errors import (
    BrokerUnavailableError,
    EnvironmentProblemError,
    MillraceError,
    NotControllerError,
    StaleBrokerEpochError,
)
from millrace_broker.cluster.alter_partition_manager import AlterPartitionManager
from millrace_broker.cluster.changed_configs import TOPICS, ChangedConfigs, EntityTypes, TopicConfigs
from millrace_broker.cluster.controller_requests import ControllerRequests
from millrace_broker.cluster.deliveries import Deliveries
from millrace_broker.cluster.opened_metadata import OpenedMetadata
from millrace_broker.cluster.own_registration import OwnRegistration
from millrace_broker.cluster.process_watch import ProcessWatch
from millrace_broker.cluster.shared_security import SharedSecurity
from millrace_broker.cluster.topic_lookups import TopicLookups
from millrace_broker.config import LiveConfig
from millrace_broker.controller.event_loop import ControllerEventLoop
from millrace_broker.decisions import (
    Answers,
    BrokerRequest,
    LeaderAndIsrRequest,
    StopReplicaRequest,
    UpdateMetadataRequest,
)
from millrace_broker.log import Files, LogManager
from millrace_broker.metadata import LiveBroker, TopicInfo, registration
from millrace_broker.metadata.gone_topics import GoneTopics
from millrace_broker.network import Peers
from millrace_broker.purgatory import Timer
from millrace_broker.replication.core import check_controller_epoch
from millrace_broker.replication.runtime import ReplicaManager
from millrace_broker.runtime import Clock, Executors, RunBlocking, cancel_and_wait

_logger = logging.getLogger(__name__)

_PAUSE_S: Final = 0.5
"""The pause between attempts to open a session, or to read what other brokers have changed."""
_FIRST_METADATA_S: Final = 30.0
"""The longest wait of a registered broker for its first UpdateMetadata."""


class Member:
    """A broker of a cluster."""

    def __init__(
        self,
        config: BrokerConfig,
        *,
        directories: Sequence[Path],
        metadata: OpenedMetadata,
        live: LiveConfig,
        entity_types: EntityTypes,
        security: SharedSecurity,
        clock: Clock,
        timer: Timer,
        executors: Executors,
        files: Files,
        peers: Peers,
        logs: LogManager,
        replicas: ReplicaManager,
        gone: GoneTopics,
        fail: Callable[[MillraceError], None],
    ) -> None:
        """``entity_types`` follow changed configurations, but for topics, which this class follows.

        ``gone`` is called for deleted topics, ``fail`` stops the broker.
        """
        self._config: Final = config
        self._directories: Final = directories
        self._metadata: Final = metadata
        self._coordination: Final = metadata.coordination
        self._catalog: Final = metadata.catalog
        self._clock: Final = clock
        self._executors: Final = executors
        self._files: Final = files
        self._peers: Final = peers
        self._logs: Final = logs
        self._replicas: Final = replicas
        self._gone: Final = gone
        self._fail: Final = fail
        self._id: Final = config.broker_id
        self._brokers: dict[int, LiveBroker] = {}
        self._controller_epoch = 0
        self._has_metadata: Final = asyncio.Event()
        """Set after the first UpdateMetadata."""
        self._security: Final = security
        self._is_closing = False
        self._renewing: asyncio.Task[None] | None = None
        self._replaced: Coordination | None = None  # the ended session, while another one is being opened
        self._loop: Final = asyncio.get_running_loop()
        self._config_watch: Final = OnLoop(self._loop, self._notice_left)
        self.topics: Final = TopicLookups(
            self._catalog, self._coordination, executors=executors, timer=timer, clock=clock
        )
        self._changed_configs: Final = ChangedConfigs(
            {TOPICS: (TopicConfigs(metadata.catalog, self.take_topic),), **entity_types}
        )
        deliveries = Deliveries(config, peers, self)
        self._registration: Final = OwnRegistration(
            self._id, self._patience_s, self._run, self._fence, self._catch_up, fail
        )
        self._process_watch: Final = ProcessWatch(peers, self._process_lost)
        self.controlling: Final = ControllerEventLoop(
            config, clock.now_ms, executors.administer, deliveries.deliver, deliveries.take_brokers
        )
        self.controller_requests: Final = ControllerRequests(config, peers, self.controlling)
        self._alter_partitions: Final = AlterPartitionManager(
            lambda changes: self.controller_requests.alter_partitions(self.broker_epoch, changes)
        )
        live.subscribe(lambda current: executors.on_loop(self.controlling.take_config, current))

    @property
    def _patience_s(self) -> float:
        """The longest wait for the end of an earlier registration of this broker."""
        zookeeper = self._config.zookeeper_config
        return 0 if zookeeper is None else 2 * zookeeper.zookeeper_session_timeout_ms / 1000

    @property
    def _run(self) -> RunBlocking:
        """The runner of calls that open, register and close sessions."""
        return self._executors.administer if self._config.zookeeper_config is None else asyncio.to_thread

    # --- configurations, in the administration thread ------------------------------------------------------------

    def take_topic(self, topic: str, config: TopicConfig) -> None:
        """Apply a topic's configuration on this broker."""
        self._logs.set_config(topic, config)
        self._executors.on_loop(self._replicas.topic_changed, topic)
        if config.unclean_leader_election_enable:
            self._executors.on_loop(self.controlling.unclean_allowed)

    def _take_notices(self, session: Coordination) -> None:
        """Read what other brokers have changed, and watch for the next change."""
        self._metadata.notifications.take(session, self._config_watch, self._changed_configs.take)
        self._security.take(session, self._config_watch)

    def _take_changed_configs(self) -> None:
        try:
            self._security.take_all()
            self._changed_configs.take_all()
        except CoordinationError:
            raise
        except MillraceError as error:
            _logger.error("changed configurations could not be applied: %s", error.message)

    # --- sessions ----------------------------------------------------------------------------------------------

    async def announce(self, endpoints: Mapping[str, Listener]) -> None:
        """Register, run for controller, and wait for the first UpdateMetadata of a controller.

        If this broker becomes the controller, wait until it leads the partitions that the controller assigns to it.
        Raises ``BrokerIdTakenError``, and ``EnvironmentProblemError`` when no controller sends an UpdateMetadata in
        time.
        """
        self._node = self._broker_node(endpoints, self._config)
        self._replicas.alter_partition = self._alter_partitions.alter
        self.controlling.start()
        await self._begin(self._coordination.session)
        try:
            async with asyncio.timeout(self._patience_s + _FIRST_METADATA_S):
                await self._has_metadata.wait()
        except TimeoutError:
            raise EnvironmentProblemError(
                f"broker {self._id} has registered, but the controller does not reach it: check that other brokers can "
                f"connect to {endpoints[self._config.inter_broker_listener]} (advertised.listeners)"
            ) from None
        with contextlib.suppress(NotControllerError, TimeoutError):
            async with asyncio.timeout(_FIRST_METADATA_S):
                await self.controlling.settled()

    async def advertise(self, endpoints: Mapping[str, Listener], config: BrokerConfig) -> None:
        """Change the advertised addresses while the broker is registered."""
        self._node = self._broker_node(endpoints, config)
        await self._registration.change(self._node)

    def _broker_node(self, endpoints: Mapping[str, Listener], config: BrokerConfig) -> BrokerNode:
        return registration.broker_node(
            endpoints,
            rack=config.broker_rack,
            timestamp_ms=self._clock.now_ms(),
            security_protocol_of=config.security_protocol_of,
        )

    @property
    def broker_epoch(self) -> int:
        """The broker epoch of the registration; -1 before it is registered."""
        return self._registration.epoch

    async def _begin(self, session: Coordination) -> None:
        """Register under a session, take changed configurations, and run for controller."""
        ended = OnLoop(self._loop, self._session_ended)
        session.on_session_end(lambda: ended(session))
        first = self._directories[0]
        is_shared = self._metadata.directory is None  # another process can read the registration only then
        directory = first if is_shared and first not in self._logs.failed_directories() else None
        await self._registration.begin(session, self._node, self._files, directory)
        await self._executors.administer(self._take_notices, session)
        self.controlling.begin(session)

    async def _fence(self) -> None:
        """Stop leading, because the controller considers this broker dead and elects other leaders."""
        await self._replicas.fence()
        await self._alter_partitions.fence()

    async def _catch_up(self) -> None:
        """Read topics and configurations again, because changes may have been missed."""
        known = self._catalog.topics
        await self._executors.administer(self._catalog.load)
        self._report_gone(known, known)
        await self._executors.administer(self._take_changed_configs)

    def _session_ended(self, session: Coordination) -> None:
        if self._is_closing or session is not self._coordination.session or session is self._replaced:
            return
        _logger.warning("broker %d: its ZooKeeper session has expired, and the broker registers again", self._id)
        self.controlling.session_over()
        if self._renewing is not None:
            self._renewing.cancel()  # it waits for the administration thread, where a call may wait for a session
        self._renewing = asyncio.create_task(self._renew(), name="millrace-zookeeper-session")

    async def _renew(self) -> None:
        """Open sessions until the registration under one succeeds."""
        while True:
            before = self._replaced = self._coordination.session
            try:
                await self._run(before.close)
                session = await self._run(self._metadata.store.connect)
                self._coordination.renew(session)
                await self._begin(session)
                await self._catch_up()
            except registration.BrokerIdTakenError as error:
                self._fail(error)
                return
            except (EnvironmentProblemError, CoordinationError) as error:
                _logger.warning("broker %d cannot register again yet: %s", self._id, error.message)
                await asyncio.sleep(_PAUSE_S)
                continue
            return

    def _notice_left(self, event: WatchEvent) -> None:
        task = asyncio.ensure_future(self._read_notices(self._coordination.session))
        task.add_done_callback(_log_failure)

    async def _read_notices(self, session: Coordination) -> None:
        """Read what other brokers have changed. While the store cannot be reached, try again.

        Without another attempt, this session would have no watch any more, and would miss all later changes of ACLs.
        """
        while session is self._coordination.session:
            try:
                await self._executors.administer(self._take_notices, session)
                return
            except ConnectionLossError as error:
                if self._is_closing:
                    return
                _logger.warning("changes by other brokers cannot be read yet: %s", error.message)
                await asyncio.sleep(_PAUSE_S)

    async def leave(self) -> None:
        """Move leaders to other brokers, as Kafka's controlled shutdown does."""
        config = self._config
        self._is_closing = True
        if config.controlled_shutdown_enable and self._has_metadata.is_set() and len(self._brokers) > 1:
            for attempt in range(config.controlled_shutdown_max_retries):
                if attempt:
                    await asyncio.sleep(config.controlled_shutdown_retry_backoff_ms / 1000)
                if await self._shut_down():
                    break
        await self._alter_partitions.close()

    async def _shut_down(self) -> bool:
        try:
            remaining = await self.controller_requests.shut_down(self.broker_epoch)
        except MillraceError as error:
            _logger.warning(
                "broker %d could not request a controlled shutdown from the controller: %s", self._id, error.message
            )
            return False
        if remaining:
            names = ", ".join(map(str, remaining[:10]))
            _logger.warning(
                "%d partitions of broker %d have no other broker that can lead them: %s",
                len(remaining),
                self._id,
                names,
            )
        return not remaining

    async def disks_failed(self) -> None:
        """Notify the controller by a node, as Kafka's brokers do."""
        node = LogDirEventNode(self._id).encode()
        create = partial(self._coordination.create, paths.LOG_DIR_EVENT, node, sequential=True)
        await self._executors.administer(create)

    async def close(self) -> None:
        """Resign as the controller and end the session, so that other brokers see the end at once."""
        self._is_closing = True
        self._coordination.release()
        await cancel_and_wait(self._renewing)
        await self._registration.close()
        await self._process_watch.close()
        await self._alter_partitions.close()
        await self.controlling.close()
        self.topics.close()
        await self._run(self._metadata.close)

    # --- requests of the controller ------------------------------------------------------------------------------

    async def leader_and_isr(self, request: LeaderAndIsrRequest, leaders: Sequence[LiveBroker]) -> Answers:
        """Lead and follow partitions.

        Raises ``StaleControllerEpochError``, ``StaleBrokerEpochError``, ``BrokerUnavailableError`` before the broker is
        registered.
        """
        self._check(request)
        for leader in leaders:
            self._peers.know(leader.broker_id, leader.endpoints)
        marked = await self._executors.administer(self._catalog.refresh_unknown, request.topic_ids)
        return await self._replicas.become(request, marked)

    async def stop_replica(self, request: StopReplicaRequest) -> Answers:
        """Stop replicas. Raises the errors of ``leader_and_isr``."""
        self._check(request)
        return await self._replicas.stop(request)

    async def update_metadata(self, request: UpdateMetadataRequest, brokers: Sequence[LiveBroker]) -> None:
        """Apply the live brokers and the leadership of partitions. Raises the errors of ``leader_and_isr``."""
        self._check(request)
        self.controller_requests.controller_id = request.controller_id
        self._take_live({each.broker_id: each for each in brokers})
        before = self._catalog.topics
        topics = await self._executors.administer(self._catalog.update_metadata, request)
        self.topics.announced(topics)
        await self._replicas.stop_reassigned(request)
        self._report_gone(before, topics)
        self.topics.check(topics)
        self._has_metadata.set()

    def _report_gone(self, before: Mapping[str, TopicInfo], names: Iterable[str]) -> None:
        """Report those topics of ``before`` that were deleted, or deleted and created again."""
        after = self._catalog.topics
        for name in names:
            gone = before.get(name)
            if gone is not None and (name not in after or after[name].topic_id != gone.topic_id):
                self._gone.report(gone)

    def _check(self, request: BrokerRequest) -> None:
        if self.broker_epoch < 0:  # a replaced controller may have sent it to an earlier broker epoch
            raise BrokerUnavailableError(f"broker {self._id} is starting and is not registered yet: try again")
        if self._registration.is_removed:  # the controller may have decided it before it considered this broker dead
            raise BrokerUnavailableError(
                f"the registration of broker {self._id} was removed, and the broker registers again: retry"
            )
        check_controller_epoch(self._controller_epoch, request.controller_epoch)
        if request.broker_epoch < self.broker_epoch:
            raise StaleBrokerEpochError(
                f"broker {self._id} has registered again: its epoch is {self.broker_epoch}, not {request.broker_epoch}"
            )
        self._controller_epoch = request.controller_epoch

    def _take_live(self, brokers: dict[int, LiveBroker]) -> None:
        for broker_id in self._brokers.keys() - brokers.keys():
            self._peers.forget(broker_id)
        for broker in brokers.values():
            self._peers.know(broker.broker_id, broker.endpoints)
        self._brokers = dict(sorted(brokers.items()))
        if not self._is_closing:
            self._process_watch.keep(brokers.keys() - {self._id})
        self._replicas.brokers_alive(frozenset(brokers))

    async def _process_lost(self, broker_id: int) -> None:
        address = self._peers.address(broker_id)
        if address is not None:
            is_refused = self._process_watch.is_refused
            await self.controlling.process_lost(broker_id, self.controller_id, address, is_refused)

    # --- calls of the API ----------------------------------------------------------------------------------------

    @property
    def controller_id(self) -> int:
        """The id of the controller that sent the last UpdateMetadata; -1 before the first."""
        return self.controller_requests.controller_id

    def live_brokers(self) -> Sequence[LiveBroker]:
        """Return the live brokers of the last UpdateMetadata. Raises ``BrokerUnavailableError`` before the first."""
        if not self._has_metadata.is_set():
            raise BrokerUnavailableError(
                f"broker {self._id} is starting and does not know the other brokers yet: try again"
            )
        return tuple(self._brokers.values())


def _log_failure(task: asyncio.Future[None]) -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        _logger.warning(
            "changed configurations could not be read; the broker reads them in its next ZooKeeper session: %s", error
        )
