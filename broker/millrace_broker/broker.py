"""The broker without its network: all of its parts, made one after the other, and their life together.

``open_broker`` takes the data directories, recovers the logs and makes the parts; ``Broker.announce`` makes the broker
known under its address; ``Broker.close`` ends cleanly. Each part is given the parts that it uses. Only the calls of
``millrace_broker.api`` are given the whole broker.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from millrace.config.broker import BrokerConfig, Listener
from millrace.config.dynamic import FOLLOWER_RATE, LEADER_RATE
from millrace.coordination import Coordination, SessionStore
from millrace.errors import EnvironmentProblemError, InvalidRequestError
from millrace_broker.cluster.interface import Membership, OpenedMetadata
from millrace_broker.cluster.standalone import EmbeddedMetadata, Standalone, open_embedded_metadata
from millrace_broker.config import LiveConfig
from millrace_broker.config.apply import apply_to_logs
from millrace_broker.coordinators import InternalTopics, ShardFactory
from millrace_broker.groups import GroupCoordinator, GroupStatistics
from millrace_broker.log import Files, LogManager, OsFiles
from millrace_broker.log.cleaning.settings import cleaner_settings
from millrace_broker.log.cleaning.threads import CleanerStatistics
from millrace_broker.log.fsync_batching import FsyncBatching, FsyncStatistics
from millrace_broker.log.periodic_work import PeriodicWork, check_directories
from millrace_broker.log.reads import LogReads
from millrace_broker.log.starting import Progress
from millrace_broker.log.tiered.manager import TieringStatistics
from millrace_broker.log.tiered.remote_reads import RemoteReaders, RemoteReadStatistics
from millrace_broker.log.tiered.settings import check_tiered_topics, tiering_settings
from millrace_broker.log.tiered.store import ArrowStore
from millrace_broker.metadata import (
    BrokerConfigs,
    GroupConfigs,
    LiveBroker,
    PayloadSchemas,
    ProducerIds,
    TopicCatalog,
    TopicChanges,
    TopicInfo,
)
from millrace_broker.metadata.gone_topics import GoneTopics
from millrace_broker.metadata.topic_keys import keys_of
from millrace_broker.network import Peers
from millrace_broker.purgatory import PurgatoryStatistics, Timer
from millrace_broker.quotas import Admission, AdmissionStatistics, CallClass
from millrace_broker.replication.runtime import (
    Appends,
    PartitionDirectory,
    ReplicaManager,
    ReplicationStatistics,
    Waiters,
)
from millrace_broker.runtime import Clock, Executors, Failure, SystemClock
from millrace_broker.share_groups import ShareCoordinator, ShareStatistics
from millrace_broker.share_groups.sources import Sources
from millrace_broker.transactions import TransactionCoordinator, TransactionStatistics
from millrace_broker.transactions.markers import Markers

if TYPE_CHECKING:  # a broker by itself does without these modules
    from millrace_broker.cluster.member import Member
    from millrace_broker.cluster.zookeeper_metadata import ZooKeeperMetadata
    from millrace_broker.controller.event_loop import ControllerLoopStatistics


@dataclass(frozen=True, slots=True)
class BrokerStatistics:
    """What the broker is doing now."""

    topics: int
    partitions: int
    admission: AdmissionStatistics
    delayed_fetches: PurgatoryStatistics
    delayed_committed_fetches: PurgatoryStatistics
    fsyncs: FsyncStatistics
    replication: ReplicationStatistics
    remote_reads: RemoteReadStatistics
    cleaner: CleanerStatistics | None
    tiering: TieringStatistics | None
    groups: GroupStatistics
    share_groups: ShareStatistics
    transactions: TransactionStatistics
    controlling: ControllerLoopStatistics | None = None
    """None for a broker by itself."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Broker:
    """One broker, by itself or one of a cluster. ``open_broker`` makes it."""

    address: Listener
    """Where clients reach it."""
    frame_port: int
    """Where clients find the same calls as frames; 0: nowhere."""
    clock: Clock
    timer: Timer
    executors: Executors
    failure: Failure
    peers: Peers
    """The way to the other brokers."""
    admission: Admission
    """Listeners have calls and connections admitted here."""

    coordination: Coordination
    cluster_id: str
    catalog: TopicCatalog
    changes: TopicChanges
    live_config: LiveConfig
    broker_configs: BrokerConfigs
    group_configs: GroupConfigs
    payload_schemas: PayloadSchemas
    producer_ids: ProducerIds
    internal_topics: InternalTopics

    logs: LogManager
    reads: LogReads
    fsyncs: FsyncBatching
    periodic_work: PeriodicWork
    waiters: Waiters
    replicas: ReplicaManager
    partitions: PartitionDirectory
    appends: Appends

    membership: Membership
    cluster_member: Member | None
    groups: GroupCoordinator
    share_groups: ShareCoordinator
    transactions: TransactionCoordinator

    @property
    def config(self) -> BrokerConfig:
        """The configuration that holds now."""
        return self.live_config.current

    @property
    def member(self) -> Member:
        """This broker as one of a cluster. Raises ``InvalidRequestError`` where it is by itself."""
        if self.cluster_member is None:
            raise InvalidRequestError(f"broker {self.config.broker_id} is by itself: no controller has a say here")
        return self.cluster_member

    async def announce(self) -> None:
        """Register under the address that clients are to use, and begin the periodic work."""
        await self.membership.announce(self.address)
        self.periodic_work.start()

    async def leave(self) -> None:
        """Let other brokers take over what this one does, then answer all who wait: it is about to stop."""
        await self.membership.leave()
        self.share_groups.release()
        self.waiters.close()
        self.replicas.release()
        self.groups.release()
        self.transactions.release()

    async def close(self) -> None:
        """Finish what has begun, write checkpoints and the clean-shutdown marks, let go of the directories."""
        self.replicas.release()
        await self.transactions.close()
        await self.share_groups.close()
        await self.groups.close()
        await self.replicas.close()
        await self.periodic_work.close()
        await self.executors.finish_tasks()
        try:
            await self.executors.run_io(self.logs.close)
        finally:
            await self.membership.close()
            await self.peers.close()
            self.timer.close()
            self.fsyncs.close()
            self.reads.close()
            self.executors.close()

    def live_brokers(self) -> Sequence[LiveBroker]:
        """Return the brokers that are up, by id. Raises ``BrokerUnavailableError`` while they are not known."""
        return self.membership.live_brokers()

    def statistics(self) -> BrokerStatistics:
        """Return the present numbers."""
        member = self.cluster_member
        return BrokerStatistics(
            topics=len(self.catalog.topics),
            partitions=self.catalog.partition_count,
            admission=self.admission.statistics(),
            delayed_fetches=self.waiters.fetches.statistics(),
            delayed_committed_fetches=self.waiters.committed_fetches.statistics(),
            fsyncs=self.fsyncs.statistics(),
            replication=self.replicas.statistics(),
            remote_reads=self.reads.statistics(),
            cleaner=None if self.logs.cleaner is None else self.logs.cleaner.statistics(),
            tiering=None if self.logs.tiering is None else self.logs.tiering.statistics(),
            groups=self.groups.statistics(),
            share_groups=self.share_groups.statistics(),
            transactions=self.transactions.statistics(),
            controlling=None if member is None else member.controlling.statistics(),
        )


async def open_broker(
    config: BrokerConfig,
    *,
    address: Listener,
    frame_port: int = 0,
    clock: Clock | None = None,
    files: Files | None = None,
    peers: Peers | None = None,
    store: SessionStore | None = None,
    has_controller: bool | None = None,
    on_progress: Progress | None = None,
) -> Broker:
    """Take the data directories, recover the logs, finish what was interrupted, and make all parts.

    ``store`` is in place of the ZooKeeper that is configured, ``peers`` of the network between brokers.
    ``has_controller`` says whether nothing is led until a controller has told of it: by default, in a cluster.
    ``on_progress`` is told of recovered and all logs, from another thread.

    Raises ``EnvironmentProblemError`` when a directory is not writable, in use, or another broker's; then nothing is
    left behind.
    """
    clock = clock or SystemClock()
    files = files or OsFiles()
    has_controller = config.is_clustered if has_controller is None else has_controller
    directories = [Path(name).expanduser().absolute() for name in config.log_directories]
    async with AsyncExitStack() as undo:
        executors = Executors(config.num_io_threads, clock.monotonic)
        undo.callback(executors.close)
        timer = Timer(clock)
        undo.callback(timer.close)
        timer.start(asyncio.get_running_loop())
        peers = peers or Peers()
        undo.push_async_callback(peers.close)
        failure = Failure()

        # --- metadata and logs ---------------------------------------------------------------------------------
        metadata = await executors.administer(_open_metadata, config, directories, files, clock, store)
        undo.push_async_callback(executors.administer, metadata.close)
        peers.cluster_id = metadata.cluster_id
        broker_configs = await executors.administer(BrokerConfigs, metadata.coordination, config, metadata.notices)
        live_config = LiveConfig(broker_configs)
        config, catalog = live_config.current, metadata.catalog
        logs = await executors.administer(
            _open_logs, config, directories, metadata, files, clock, has_controller, on_progress
        )
        undo.push_async_callback(executors.run_io, logs.close)
        metadata_directory = None if has_controller else directories[0]
        check_directories(logs, metadata_directory)
        group_configs = await executors.administer(GroupConfigs, metadata.coordination, config, metadata.notices)
        payload_schemas = await executors.administer(PayloadSchemas, metadata.coordination, metadata.notices)
        producer_ids = ProducerIds(metadata.coordination, config.broker_id)

        # --- replicas ------------------------------------------------------------------------------------------
        fsyncs = FsyncBatching(config.num_io_threads)
        undo.callback(fsyncs.close)
        reads = LogReads(
            executors, RemoteReaders(config.remote_log_reader_threads, config.remote_log_reader_max_pending_tasks)
        )
        undo.callback(reads.close)
        waiters = Waiters(timer)
        replicas = ReplicaManager(
            config,
            clock=clock,
            timer=timer,
            executors=executors,
            catalog=catalog,
            logs=logs,
            reads=reads,
            peers=peers,
            waiters=waiters,
            has_controller=has_controller,
        )

        # --- the place among other brokers ---------------------------------------------------------------------
        gone = GoneTopics(executors)
        membership: Standalone | Member
        if isinstance(metadata, EmbeddedMetadata):
            membership = Standalone(config, metadata=metadata, logs=logs, executors=executors, clock=clock, gone=gone)
        else:
            from millrace_broker.cluster.member import Member

            membership = Member(
                config,
                directories=directories,
                metadata=metadata,
                live=live_config,
                groups=group_configs,
                schemas=payload_schemas,
                clock=clock,
                timer=timer,
                executors=executors,
                files=files,
                peers=peers,
                logs=logs,
                replicas=replicas,
                gone=gone,
                fail=failure.fail,
            )
        deployment = await executors.administer(membership.deploy)
        changes = TopicChanges(config, metadata.coordination, catalog, deployment)
        await executors.administer(_start_log_threads, config, logs, catalog)
        partitions = PartitionDirectory(
            config.broker_id,
            catalog,
            logs,
            find_replica=replicas.find,
            look_up=membership.find,
            has_controller=has_controller,
        )
        appends = Appends(executors, logs, fsyncs, waiters, replicas)

        # --- coordinators --------------------------------------------------------------------------------------
        topics = InternalTopics(
            config, catalog=catalog, changes=changes, executors=executors, await_leaders=membership.led
        )
        shards = ShardFactory(
            topics=topics,
            partitions=partitions,
            appends=appends,
            replicas=replicas,
            executors=executors,
            clock=clock,
        )
        groups = GroupCoordinator(config, clock=clock, timer=timer, executors=executors, shards=shards)
        sources = Sources(
            config.broker_id,
            catalog=catalog,
            partitions=partitions,
            reads=reads,
            peers=peers,
            arrivals=waiters.fetches,
        )
        share_groups = ShareCoordinator(
            config,
            clock=clock,
            timer=timer,
            partitions=partitions,
            sources=sources,
            arrivals=waiters.fetches,
            group_configs=group_configs,
            shards=shards,
        )
        markers = Markers(
            catalog=catalog,
            partitions=partitions,
            appends=appends,
            executors=executors,
            peers=peers,
            offsets=groups,
        )
        transactions = TransactionCoordinator(
            config,
            clock=clock,
            timer=timer,
            executors=executors,
            partitions=partitions,
            peers=peers,
            markers=markers,
            offsets=groups,
            producer_ids=producer_ids,
            shards=shards,
        )

        # --- what changes while it runs ------------------------------------------------------------------------
        admission = Admission(config, clock.monotonic)

        def take_config(current: BrokerConfig) -> None:
            admission.connections.maxima[CallClass.CLIENT] = current.max_connections
            executors.resize_io(current.num_io_threads)
            replicas.resize_fetchers(current.num_replica_fetchers)
            replicas.set_throttle_rates(
                leader_bytes_per_s=broker_configs.rate(LEADER_RATE),
                follower_bytes_per_s=broker_configs.rate(FOLLOWER_RATE),
            )

        def forget(topic: TopicInfo) -> None:
            waiters.forget((topic.name, number) for number in topic.partitions)
            groups.topic_deleted(topic.name)
            share_groups.topic_deleted(topic)

        gone.subscribe(forget)
        live_config.subscribe(lambda current: executors.on_loop(take_config, current))
        live_config.subscribe(lambda current: apply_to_logs(current, logs, catalog, changes.deployment.configured))
        await executors.administer(live_config.tell)

        replicas.start()
        groups.start()
        share_groups.start()
        transactions.start()
        undo.pop_all()
    return Broker(
        address=address,
        frame_port=frame_port,
        clock=clock,
        timer=timer,
        executors=executors,
        failure=failure,
        peers=peers,
        admission=admission,
        coordination=metadata.coordination,
        cluster_id=metadata.cluster_id,
        catalog=catalog,
        changes=changes,
        live_config=live_config,
        broker_configs=broker_configs,
        group_configs=group_configs,
        payload_schemas=payload_schemas,
        producer_ids=producer_ids,
        internal_topics=topics,
        logs=logs,
        reads=reads,
        fsyncs=fsyncs,
        periodic_work=PeriodicWork(
            logs,
            executors,
            metadata_directory=metadata_directory,
            disks_failed=membership.disks_failed,
            fail=failure.fail,
        ),
        waiters=waiters,
        replicas=replicas,
        partitions=partitions,
        appends=appends,
        membership=membership,
        cluster_member=None if isinstance(membership, Standalone) else membership,
        groups=groups,
        share_groups=share_groups,
        transactions=transactions,
    )


def _open_metadata(
    config: BrokerConfig, directories: Sequence[Path], files: Files, clock: Clock, store: SessionStore | None
) -> EmbeddedMetadata | ZooKeeperMetadata:
    """Open the metadata, in the administration thread."""
    _make_directory(directories[0])  # the others may fail: those with partitions of topics do
    if not config.is_clustered:
        return open_embedded_metadata(config, directory=directories[0], files=files, clock=clock)
    from millrace_broker.cluster.zookeeper_metadata import open_zookeeper_metadata

    return open_zookeeper_metadata(config, directories=directories, files=files, store=store)


def _make_directory(directory: Path) -> None:
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise EnvironmentProblemError(f"cannot make the data directory {directory}: {error.strerror}") from error
    if not os.access(directory, os.W_OK | os.X_OK):
        raise EnvironmentProblemError(
            f"the data directory {directory} is not writable for this user: change its owner, or set log.dirs"
        )


def _open_logs(
    config: BrokerConfig,
    directories: list[Path],
    metadata: OpenedMetadata,
    files: Files,
    clock: Clock,
    holds_watermarks: bool,
    on_progress: Progress | None,
) -> LogManager:
    """Recover the logs, in the administration thread."""
    catalog = metadata.catalog
    catalog.set_defaults(config.topic_defaults)
    configs = {topic.name: topic.config for topic in catalog.topics.values()}
    check_tiered_topics(config, configs)
    return LogManager.open(
        directories,
        broker_id=config.broker_id,
        cluster_id=metadata.cluster_id,
        defaults=config.topic_defaults,
        files=files,
        clock=clock,
        on_progress=on_progress,
        configs=configs,
        producer_expiration_ms=config.producer_id_expiration_ms,
        retention_check_interval_ms=config.log_retention_check_interval_ms,
        initial_task_delay_ms=config.log_initial_task_delay_ms,
        recovery_threads=config.num_recovery_threads_per_data_dir,
        holds_watermarks=holds_watermarks,
    )


def _start_log_threads(config: BrokerConfig, logs: LogManager, catalog: TopicCatalog) -> None:
    """Start the log cleaner and tiered storage, as far as they are enabled."""
    if config.log_cleaner_enable:
        logs.start_cleaner(cleaner_settings(config), keys_of(catalog))
    if config.remote_log_storage_system_enable:
        logs.start_tiering(tiering_settings(config), ArrowStore(config.remote_log_storage_uri))
