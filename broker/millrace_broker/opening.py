"""Start of a broker: each part is constructed from the few parts that it uses.

The steps follow the layers: threads and time, metadata and logs, replicas, cluster membership, coordinators. If a step
fails, the resources of all earlier steps are closed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from millrace.config.broker import BrokerConfig
from millrace.config.dynamic import FOLLOWER_RATE, LEADER_RATE, MOVE_RATE
from millrace.config.listeners import Listener
from millrace.coordination import SessionStore
from millrace_broker.broker import Broker
from millrace_broker.cluster.interface import Membership, OpenedMetadata
from millrace_broker.cluster.opened_metadata import open_metadata
from millrace_broker.cluster.standalone import EmbeddedMetadata, Standalone
from millrace_broker.config import LiveConfig
from millrace_broker.config.apply import apply_to_logs
from millrace_broker.coordinators import InternalTopics, ShardFactory
from millrace_broker.groups import GroupCoordinator
from millrace_broker.log import Files, LogManager, OsFiles
from millrace_broker.log.cleaning.settings import cleaner_settings
from millrace_broker.log.fsync_batching import FsyncBatching
from millrace_broker.log.periodic_work import PeriodicWork, check_directories
from millrace_broker.log.read_threads import LogReads
from millrace_broker.log.recovery_threads import Progress
from millrace_broker.log.tiered.remote_reads import RemoteReaders
from millrace_broker.log.tiered.settings import check_tiered_topics, tiering_settings
from millrace_broker.log.tiered.store import ArrowStore
from millrace_broker.metadata import (
    BrokerConfigs,
    ClientMetricsConfigs,
    GroupConfigs,
    PayloadSchemas,
    ProducerIds,
    RecordCodecs,
    ScramCredentials,
    TopicCatalog,
    TopicChanges,
    TopicInfo,
)
from millrace_broker.metadata.gone_topics import GoneTopics
from millrace_broker.metadata.topic_keys import keys_of
from millrace_broker.network import Peers
from millrace_broker.purgatory import Timer
from millrace_broker.quotas import Admission, CallClass
from millrace_broker.replication.runtime import Appends, PartitionDirectory, ReplicaManager, Waiters
from millrace_broker.runtime import Clock, Executors, Failure, SystemClock
from millrace_broker.security import AclStore, open_authorizer
from millrace_broker.share_groups import ShareCoordinator
from millrace_broker.share_groups.sources import Sources
from millrace_broker.transactions import TransactionCoordinator
from millrace_broker.transactions.markers import Markers

if TYPE_CHECKING:  # a broker by itself does without these modules
    from millrace_broker.cluster.member import Member
    from millrace_broker.cluster.zookeeper_metadata import ZooKeeperMetadata


@dataclass(frozen=True, slots=True, kw_only=True)
class _Base:
    """Directories, threads, clock and connections, which all parts use."""

    directories: list[Path]
    clock: Clock
    files: Files
    executors: Executors
    timer: Timer
    peers: Peers
    failure: Failure
    has_controller: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class _Storage:
    """Open metadata and logs. ``config`` is the configuration at the time of opening."""

    config: BrokerConfig
    metadata: EmbeddedMetadata | ZooKeeperMetadata
    broker_configs: BrokerConfigs
    live_config: LiveConfig
    group_configs: GroupConfigs
    scram_credentials: ScramCredentials
    payload_schemas: PayloadSchemas
    acls: AclStore | None
    logs: LogManager


@dataclass(frozen=True, slots=True, kw_only=True)
class _Replicas:
    """Replica manager, log reads and fsyncs."""

    fsyncs: FsyncBatching
    reads: LogReads
    waiters: Waiters
    manager: ReplicaManager


@dataclass(frozen=True, slots=True, kw_only=True)
class _Coordinators:
    """Coordinators of groups, share groups and transactions, with the topics and producer ids that they use."""

    producer_ids: ProducerIds
    topics: InternalTopics
    groups: GroupCoordinator
    share_groups: ShareCoordinator
    transactions: TransactionCoordinator


async def open_broker(
    config: BrokerConfig,
    *,
    endpoints: Mapping[str, Listener],
    clock: Clock | None = None,
    files: Files | None = None,
    peers: Peers | None = None,
    store: SessionStore | None = None,
    has_controller: bool | None = None,
    on_progress: Progress | None = None,
) -> Broker:
    """Lock the data directories, recover the logs, finish interrupted deletions, and construct all parts.

    ``endpoints`` are the advertised addresses of the listeners. ``store`` replaces the configured ZooKeeper, and
    ``peers`` the network between brokers. With ``has_controller`` the broker leads a partition only after a controller
    has decided so; this is the default in a cluster. ``on_progress`` is called from another thread with the number of
    recovered logs and of all logs.

    Raises ``EnvironmentProblemError`` if a directory is not writable, is in use, or belongs to another broker. Then all
    resources are closed again.
    """
    async with AsyncExitStack() as undo:
        base = _make_base(
            config,
            undo,
            clock=clock or SystemClock(),
            files=files or OsFiles(),
            peers=peers or Peers.of(config),
            has_controller=config.is_clustered if has_controller is None else has_controller,
        )
        storage = await _open_storage(config, base, undo, store, on_progress)
        replicas = _make_replicas(base, storage, undo)
        gone = GoneTopics(base.executors)
        membership = _make_membership(base, storage, replicas.manager, gone)
        changes = await _begin_changes(base, storage, membership)
        partitions = PartitionDirectory(
            storage.config.broker_id,
            storage.metadata.catalog,
            storage.logs,
            find_replica=replicas.manager.find,
            look_up=membership.find,
            has_controller=base.has_controller,
        )
        appends = Appends(base.executors, storage.logs, replicas.fsyncs, replicas.waiters, replicas.manager)
        coordinators = _make_coordinators(base, storage, replicas, partitions, appends, changes, membership)
        admission = Admission(storage.config, base.clock.monotonic)
        _forget_gone_topics(gone, replicas.waiters, coordinators)
        _follow_config(base, storage, replicas.manager, admission, changes)
        await base.executors.administer(storage.live_config.tell)
        replicas.manager.start()
        for coordinator in (coordinators.groups, coordinators.share_groups, coordinators.transactions):
            coordinator.start()
        undo.pop_all()
    return _assemble(
        base, storage, replicas, membership, changes, partitions, appends, coordinators, admission, endpoints
    )


def _assemble(
    base: _Base,
    storage: _Storage,
    replicas: _Replicas,
    membership: Standalone | Member,
    changes: TopicChanges,
    partitions: PartitionDirectory,
    appends: Appends,
    coordinators: _Coordinators,
    admission: Admission,
    endpoints: Mapping[str, Listener],
) -> Broker:
    """Collect all parts in the ``Broker`` record."""
    return Broker(
        endpoints=endpoints,
        clock=base.clock,
        timer=base.timer,
        executors=base.executors,
        failure=base.failure,
        peers=base.peers,
        admission=admission,
        authorizer=open_authorizer(storage.config, storage.acls),
        coordination=storage.metadata.coordination,
        cluster_id=storage.metadata.cluster_id,
        catalog=storage.metadata.catalog,
        changes=changes,
        live_config=storage.live_config,
        broker_configs=storage.broker_configs,
        group_configs=storage.group_configs,
        scram_credentials=storage.scram_credentials,
        client_metrics=ClientMetricsConfigs(storage.metadata.coordination),
        payload_schemas=storage.payload_schemas,
        record_codecs=RecordCodecs(lambda: storage.payload_schemas.schemas),
        producer_ids=coordinators.producer_ids,
        internal_topics=coordinators.topics,
        logs=storage.logs,
        reads=replicas.reads,
        fsyncs=replicas.fsyncs,
        periodic_work=PeriodicWork(
            storage.logs,
            base.executors,
            metadata_directory=_metadata_directory(base),
            disks_failed=membership.disks_failed,
            fail=base.failure.fail,
        ),
        waiters=replicas.waiters,
        replicas=replicas.manager,
        partitions=partitions,
        appends=appends,
        membership=membership,
        cluster_member=None if isinstance(membership, Standalone) else membership,
        groups=coordinators.groups,
        share_groups=coordinators.share_groups,
        transactions=coordinators.transactions,
    )


def _make_base(
    config: BrokerConfig, undo: AsyncExitStack, *, clock: Clock, files: Files, peers: Peers, has_controller: bool
) -> _Base:
    executors = Executors(config.num_io_threads, clock.monotonic)
    undo.callback(executors.close)
    timer = Timer(clock)
    undo.callback(timer.close)
    timer.start(asyncio.get_running_loop())
    undo.push_async_callback(peers.close)
    return _Base(
        directories=[Path(name).expanduser().absolute() for name in config.log_directories],
        clock=clock,
        files=files,
        executors=executors,
        timer=timer,
        peers=peers,
        failure=Failure(),
        has_controller=has_controller,
    )


# --- metadata and logs -------------------------------------------------------------------------------------------


async def _open_storage(
    config: BrokerConfig, base: _Base, undo: AsyncExitStack, store: SessionStore | None, on_progress: Progress | None
) -> _Storage:
    administer = base.executors.administer
    metadata = await administer(open_metadata, config, base.directories, base.files, base.clock, store)
    undo.push_async_callback(administer, metadata.close)
    base.peers.cluster_id = metadata.cluster_id
    broker_configs = await administer(BrokerConfigs, metadata.coordination, config, metadata.notices)
    live_config = LiveConfig(broker_configs)
    config = live_config.current
    logs = await administer(_open_logs, config, base, metadata, on_progress)
    undo.push_async_callback(base.executors.run_io, logs.close)
    check_directories(logs, _metadata_directory(base))
    return _Storage(
        config=config,
        metadata=metadata,
        broker_configs=broker_configs,
        live_config=live_config,
        group_configs=await administer(GroupConfigs, metadata.coordination, config, metadata.notices),
        scram_credentials=await administer(ScramCredentials.of, metadata.coordination, config, metadata.notices),
        payload_schemas=await administer(PayloadSchemas, metadata.coordination, metadata.notices),
        acls=await administer(AclStore.of, config, metadata.coordination, metadata.acl_notices),
        logs=logs,
    )


def _metadata_directory(base: _Base) -> Path | None:
    """Return the directory with the metadata of a single node; None in a cluster."""
    return None if base.has_controller else base.directories[0]


def _open_logs(config: BrokerConfig, base: _Base, metadata: OpenedMetadata, on_progress: Progress | None) -> LogManager:
    """Recover the logs, in the administration thread."""
    catalog = metadata.catalog
    catalog.set_defaults(config.topic_defaults)
    configs = {topic.name: topic.config for topic in catalog.topics.values()}
    check_tiered_topics(config, configs)
    return LogManager.open(
        base.directories,
        broker_id=config.broker_id,
        cluster_id=metadata.cluster_id,
        defaults=config.topic_defaults,
        files=base.files,
        clock=base.clock,
        on_progress=on_progress,
        configs=configs,
        producer_expiration_ms=config.producer_id_expiration_ms,
        retention_check_interval_ms=config.log_retention_check_interval_ms,
        initial_task_delay_ms=config.log_initial_task_delay_ms,
        recovery_threads=config.num_recovery_threads_per_data_dir,
        holds_watermarks=base.has_controller,
    )


def _start_log_threads(config: BrokerConfig, logs: LogManager, catalog: TopicCatalog) -> None:
    """Start the log cleaner and tiered storage, if enabled, and resume moves between log directories."""
    if config.log_cleaner_enable:
        logs.start_cleaner(cleaner_settings(config), keys_of(catalog))
    if config.remote_log_storage_system_enable:
        logs.start_tiering(tiering_settings(config), ArrowStore(config.remote_log_storage_uri))
    logs.moves.resume()


# --- replicas ----------------------------------------------------------------------------------------------------


def _make_replicas(base: _Base, storage: _Storage, undo: AsyncExitStack) -> _Replicas:
    config = storage.config
    fsyncs = FsyncBatching(config.num_io_threads)
    undo.callback(fsyncs.close)
    readers = RemoteReaders(config.remote_log_reader_threads, config.remote_log_reader_max_pending_tasks)
    reads = LogReads(base.executors, readers)
    undo.callback(reads.close)
    waiters = Waiters(base.timer)
    manager = ReplicaManager(
        config,
        clock=base.clock,
        timer=base.timer,
        executors=base.executors,
        catalog=storage.metadata.catalog,
        logs=storage.logs,
        reads=reads,
        peers=base.peers,
        waiters=waiters,
        has_controller=base.has_controller,
    )
    return _Replicas(fsyncs=fsyncs, reads=reads, waiters=waiters, manager=manager)


# --- cluster membership ------------------------------------------------------------------------------------------


def _make_membership(base: _Base, storage: _Storage, replicas: ReplicaManager, gone: GoneTopics) -> Standalone | Member:
    metadata = storage.metadata
    if isinstance(metadata, EmbeddedMetadata):
        return Standalone(
            storage.config,
            metadata=metadata,
            logs=storage.logs,
            executors=base.executors,
            clock=base.clock,
            gone=gone,
        )
    from millrace_broker.cluster.member import Member

    return Member(
        storage.config,
        directories=base.directories,
        metadata=metadata,
        live=storage.live_config,
        groups=storage.group_configs,
        credentials=storage.scram_credentials,
        schemas=storage.payload_schemas,
        acls=storage.acls,
        clock=base.clock,
        timer=base.timer,
        executors=base.executors,
        files=base.files,
        peers=base.peers,
        logs=storage.logs,
        replicas=replicas,
        gone=gone,
        fail=base.failure.fail,
    )


async def _begin_changes(base: _Base, storage: _Storage, membership: Membership) -> TopicChanges:
    """Finish interrupted topic changes, and start the log cleaner and tiered storage."""
    deployment = await base.executors.administer(membership.deploy)
    catalog = storage.metadata.catalog
    changes = TopicChanges(storage.config, storage.metadata.coordination, catalog, deployment)
    await base.executors.administer(_start_log_threads, storage.config, storage.logs, catalog)
    return changes


# --- coordinators ------------------------------------------------------------------------------------------------


def _make_coordinators(
    base: _Base,
    storage: _Storage,
    replicas: _Replicas,
    partitions: PartitionDirectory,
    appends: Appends,
    changes: TopicChanges,
    membership: Membership,
) -> _Coordinators:
    config, catalog = storage.config, storage.metadata.catalog
    clock, timer, executors = base.clock, base.timer, base.executors
    topics = InternalTopics(config, catalog=catalog, changes=changes, executors=executors, await_leaders=membership.led)
    shards = ShardFactory(
        topics=topics,
        partitions=partitions,
        appends=appends,
        replicas=replicas.manager,
        executors=executors,
        clock=clock,
    )
    groups = GroupCoordinator(
        config,
        catalog=catalog,
        clock=clock,
        timer=timer,
        executors=executors,
        group_configs=storage.group_configs,
        shards=shards,
    )
    producer_ids = ProducerIds(storage.metadata.coordination, config.broker_id)
    transactions = TransactionCoordinator(
        config,
        clock=clock,
        timer=timer,
        executors=executors,
        partitions=partitions,
        peers=base.peers,
        markers=Markers(
            catalog=catalog,
            partitions=partitions,
            appends=appends,
            executors=executors,
            peers=base.peers,
            offsets=groups,
        ),
        offsets=groups,
        producer_ids=producer_ids,
        shards=shards,
    )
    return _Coordinators(
        producer_ids=producer_ids,
        topics=topics,
        groups=groups,
        share_groups=_make_share_groups(base, storage, replicas, partitions, shards),
        transactions=transactions,
    )


def _make_share_groups(
    base: _Base, storage: _Storage, replicas: _Replicas, partitions: PartitionDirectory, shards: ShardFactory
) -> ShareCoordinator:
    sources = Sources(
        storage.config.broker_id,
        catalog=storage.metadata.catalog,
        partitions=partitions,
        reads=replicas.reads,
        peers=base.peers,
        arrivals=replicas.waiters.fetches,
    )
    return ShareCoordinator(
        storage.config,
        clock=base.clock,
        timer=base.timer,
        partitions=partitions,
        sources=sources,
        arrivals=replicas.waiters.fetches,
        group_configs=storage.group_configs,
        shards=shards,
    )


def _forget_gone_topics(gone: GoneTopics, waiters: Waiters, coordinators: _Coordinators) -> None:
    def forget(topic: TopicInfo) -> None:
        waiters.forget((topic.name, number) for number in topic.partitions)
        coordinators.groups.topic_deleted(topic.name)
        coordinators.share_groups.topic_deleted(topic)

    gone.subscribe(forget)


def _follow_config(
    base: _Base, storage: _Storage, replicas: ReplicaManager, admission: Admission, changes: TopicChanges
) -> None:
    executors, configs = base.executors, storage.broker_configs
    logs, catalog, configured = storage.logs, storage.metadata.catalog, changes.deployment.configured

    def take(current: BrokerConfig) -> None:
        admission.connections.maxima[CallClass.CLIENT] = current.max_connections
        executors.resize_io(current.num_io_threads)
        replicas.resize_fetchers(current.num_replica_fetchers)
        replicas.set_throttle_rates(
            leader_bytes_per_s=configs.rate(LEADER_RATE), follower_bytes_per_s=configs.rate(FOLLOWER_RATE)
        )
        logs.moves.set_rate(configs.rate(MOVE_RATE))

    storage.live_config.subscribe(lambda current: executors.on_loop(take, current))
    storage.live_config.subscribe(lambda current: apply_to_logs(current, logs, catalog, configured))
