"""Start of a broker, which constructs all of its parts.

Each part gets only the few parts that it uses. The steps follow the layers: threads and time, metadata and logs,
replicas, cluster membership, coordinators. If a step fails, the resources of all earlier steps are closed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path

from millrace.config.broker import BrokerConfig
from millrace.config.dynamic import FOLLOWER_RATE, LEADER_RATE, MOVE_RATE
from millrace.config.listeners import Listener
from millrace.coordination import SessionStore
from millrace_broker.audit import Audit, AuditQueue, AuditSpool, AuditTopic, Selection
from millrace_broker.broker import Broker
from millrace_broker.cluster.changed_configs import BROKERS, CLIENTS, GROUPS, IPS, USERS
from millrace_broker.cluster.member import Member
from millrace_broker.cluster.opened_metadata import OpenedMetadata, open_metadata
from millrace_broker.cluster.shared_security import SharedSecurity
from millrace_broker.cluster.token_expiry import TokenExpiry
from millrace_broker.config import LiveConfig
from millrace_broker.config.apply import apply_to_logs
from millrace_broker.coordinators import InternalTopics, ShardFactory
from millrace_broker.groups import GroupCoordinator
from millrace_broker.log import Files, LogManager, OsFiles
from millrace_broker.log.cleaning.settings import cleaner_settings
from millrace_broker.log.data_directory import AUDIT_SPOOL
from millrace_broker.log.fsync_batching import FsyncBatching
from millrace_broker.log.periodic_work import PeriodicWork, check_directories
from millrace_broker.log.read_ahead import ReadAhead
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
    QuotaConfigs,
    RecordCodecs,
    ScramCredentials,
    TopicChanges,
    TopicInfo,
    payload_schemas,
)
from millrace_broker.metadata.gone_topics import GoneTopics
from millrace_broker.metadata.topic_keys import keys_of
from millrace_broker.network import Peers
from millrace_broker.purgatory import Timer
from millrace_broker.quotas import Admission
from millrace_broker.replication.runtime import Appends, PartitionDirectory, ReplicaManager, Waiters
from millrace_broker.runtime import Clock, Executors, Failure, SystemClock
from millrace_broker.security import open_authorizer
from millrace_broker.share_groups import ShareCoordinator
from millrace_broker.share_groups.sources import Sources
from millrace_broker.transactions import TransactionCoordinator
from millrace_broker.transactions.markers import Markers


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


@dataclass(frozen=True, slots=True, kw_only=True)
class _Storage:
    """Open metadata and logs. ``config`` is the configuration at the time of opening."""

    config: BrokerConfig
    metadata: OpenedMetadata
    broker_configs: BrokerConfigs
    live_config: LiveConfig
    group_configs: GroupConfigs
    scram_credentials: ScramCredentials
    quota_configs: QuotaConfigs
    payload_schemas: PayloadSchemas
    security: SharedSecurity
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
    """Coordinators, with the internal topics and the producer ids that they use."""

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
    on_progress: Progress | None = None,
) -> Broker:
    """Lock the data directories, recover the logs, and construct all parts.

    ``endpoints`` are the advertised addresses of the listeners. ``store`` replaces the configured store of the
    metadata, and ``peers`` the network between brokers. ``on_progress`` is called from another thread with the number
    of recovered logs and of all logs.

    Raises ``EnvironmentProblemError`` if a directory is not writable, is in use, or belongs to another broker. Then all
    resources are closed again.
    """
    async with AsyncExitStack() as undo:
        base = _make_base(
            config, undo, clock=clock or SystemClock(), files=files or OsFiles(), peers=peers or Peers.of(config)
        )
        storage = await _open_storage(config, base, undo, store, on_progress)
        replicas = _make_replicas(base, storage, undo)
        gone = GoneTopics(base.executors)
        member = _make_member(base, storage, replicas.manager, gone)
        changes = TopicChanges(
            storage.config,
            storage.metadata.coordination,
            storage.metadata.catalog,
            configured=member.take_topic,
            gone=gone.report,
        )
        await base.executors.administer(_start_log_threads, storage)
        partitions = PartitionDirectory(
            storage.config.broker_id,
            storage.metadata.catalog,
            storage.logs,
            find_replica=replicas.manager.find,
            look_up=member.topics.find,
        )
        appends = Appends(base.executors, storage.logs, replicas.fsyncs, replicas.waiters, replicas.manager)
        coordinators = _make_coordinators(base, storage, replicas, partitions, appends, changes, member)
        admission = Admission(storage.config, base.clock.monotonic)
        _forget_gone_topics(gone, replicas.waiters, coordinators)
        _follow_config(base, storage, replicas, admission, member)
        await base.executors.administer(storage.live_config.tell)
        replicas.manager.start()
        for coordinator in (coordinators.groups, coordinators.share_groups, coordinators.transactions):
            coordinator.start()
        undo.pop_all()
    return _assemble(base, storage, replicas, member, changes, partitions, appends, coordinators, admission, endpoints)


def _assemble(
    base: _Base,
    storage: _Storage,
    replicas: _Replicas,
    member: Member,
    changes: TopicChanges,
    partitions: PartitionDirectory,
    appends: Appends,
    coordinators: _Coordinators,
    admission: Admission,
    endpoints: Mapping[str, Listener],
) -> Broker:
    return Broker(
        endpoints=endpoints,
        clock=base.clock,
        timer=base.timer,
        executors=base.executors,
        failure=base.failure,
        peers=base.peers,
        admission=admission,
        client_quotas=storage.quota_configs.followed_by(storage.config, base.clock.monotonic, base.executors.on_loop),
        authorizer=open_authorizer(storage.config, storage.security.acls),
        audit=_make_audit(base, storage, partitions, appends, coordinators),
        coordination=storage.metadata.coordination,
        cluster_id=storage.metadata.cluster_id,
        catalog=storage.metadata.catalog,
        changes=changes,
        live_config=storage.live_config,
        broker_configs=storage.broker_configs,
        group_configs=storage.group_configs,
        scram_credentials=storage.scram_credentials,
        delegation_tokens=storage.security.tokens,
        token_expiry=TokenExpiry(
            storage.security.tokens, base.executors, storage.config.delegation_token_expiry_check_interval_ms
        ),
        quota_configs=storage.quota_configs,
        client_metrics=ClientMetricsConfigs(storage.metadata.coordination),
        payload_schemas=storage.payload_schemas,
        record_codecs=RecordCodecs(lambda: storage.payload_schemas.schemas),
        producer_ids=coordinators.producer_ids,
        internal_topics=coordinators.topics,
        logs=storage.logs,
        reads=replicas.reads,
        read_ahead=ReadAhead(replicas.reads),
        fsyncs=replicas.fsyncs,
        periodic_work=PeriodicWork(
            storage.logs,
            base.executors,
            metadata_directory=storage.metadata.directory,
            disks_failed=member.disks_failed,
            fail=base.failure.fail,
        ),
        waiters=replicas.waiters,
        replicas=replicas.manager,
        partitions=partitions,
        appends=appends,
        member=member,
        groups=coordinators.groups,
        share_groups=coordinators.share_groups,
        transactions=coordinators.transactions,
    )


def _make_base(config: BrokerConfig, undo: AsyncExitStack, *, clock: Clock, files: Files, peers: Peers) -> _Base:
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
    )


async def _open_storage(
    config: BrokerConfig, base: _Base, undo: AsyncExitStack, store: SessionStore | None, on_progress: Progress | None
) -> _Storage:
    administer = base.executors.administer
    metadata = await administer(
        open_metadata, config, directories=base.directories, files=base.files, clock=base.clock, store=store
    )
    undo.push_async_callback(administer, metadata.close)
    base.peers.cluster_id = metadata.cluster_id
    broker_configs = await administer(BrokerConfigs, metadata.coordination, config)
    live_config = LiveConfig(broker_configs)
    config = live_config.current
    logs = await administer(_open_logs, config, base, metadata, on_progress)
    undo.push_async_callback(base.executors.run_io, logs.close)
    check_directories(logs, metadata.directory)
    return _Storage(
        config=config,
        metadata=metadata,
        broker_configs=broker_configs,
        live_config=live_config,
        group_configs=await administer(GroupConfigs, metadata.coordination, config),
        scram_credentials=await administer(ScramCredentials.of, metadata.coordination, config),
        quota_configs=await administer(QuotaConfigs, metadata.coordination),
        payload_schemas=await administer(PayloadSchemas, metadata.coordination),
        security=await administer(SharedSecurity.of, config, metadata.coordination, base.clock.now_ms),
        logs=logs,
    )


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
        holds_watermarks=True,
    )


def _start_log_threads(storage: _Storage) -> None:
    """Start the log cleaner and tiered storage, if enabled, and resume moves between log directories."""
    config, logs, catalog = storage.config, storage.logs, storage.metadata.catalog
    if config.log_cleaner_enable:
        logs.start_cleaner(cleaner_settings(config), keys_of(catalog))
    if config.remote_log_storage_system_enable:
        logs.start_tiering(tiering_settings(config), ArrowStore(config.remote_log_storage_uri))
    logs.moves.resume()


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
    )
    return _Replicas(fsyncs=fsyncs, reads=reads, waiters=waiters, manager=manager)


def _make_member(base: _Base, storage: _Storage, replicas: ReplicaManager, gone: GoneTopics) -> Member:
    return Member(
        storage.config,
        directories=base.directories,
        metadata=storage.metadata,
        live=storage.live_config,
        entity_types={
            GROUPS: (storage.group_configs,),
            USERS: (storage.scram_credentials, storage.quota_configs.of_type(USERS)),
            CLIENTS: (storage.quota_configs.of_type(CLIENTS),),
            IPS: (storage.quota_configs.of_type(IPS),),
            BROKERS: (storage.live_config,),
            payload_schemas.ENTITY_TYPE: (storage.payload_schemas,),
        },
        security=storage.security,
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


def _make_coordinators(
    base: _Base,
    storage: _Storage,
    replicas: _Replicas,
    partitions: PartitionDirectory,
    appends: Appends,
    changes: TopicChanges,
    member: Member,
) -> _Coordinators:
    config, catalog = storage.config, storage.metadata.catalog
    clock, timer, executors = base.clock, base.timer, base.executors
    topics = InternalTopics(
        config, catalog=catalog, changes=changes, executors=executors, await_leaders=member.topics.led
    )
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


def _make_audit(
    base: _Base, storage: _Storage, partitions: PartitionDirectory, appends: Appends, coordinators: _Coordinators
) -> Audit | None:
    config = storage.config
    if config.audit_decisions == "none":
        return None
    directory = Path(config.audit_spool_dir).expanduser().absolute() if config.audit_spool_dir else None
    target = AuditTopic(
        config.broker_id,
        topics=coordinators.topics,
        partitions=partitions,
        appends=appends,
        peers=base.peers,
        executors=base.executors,
        producer_ids=coordinators.producer_ids,
    )
    queue = AuditQueue(
        Selection(config),
        max_rows=config.audit_queue_max_rows,
        now_ms=base.clock.now_ms,
        monotonic=base.clock.monotonic,
    )
    spool = AuditSpool(directory or base.directories[0] / AUDIT_SPOOL, base.files, config.audit_spool_max_bytes)
    return Audit(queue, spool, target, base.executors, interval_s=config.audit_interval_ms / 1000)


def _forget_gone_topics(gone: GoneTopics, waiters: Waiters, coordinators: _Coordinators) -> None:
    def forget(topic: TopicInfo) -> None:
        waiters.forget((topic.name, number) for number in topic.partitions)
        coordinators.groups.topic_deleted(topic.name)
        coordinators.share_groups.topic_deleted(topic)

    gone.subscribe(forget)


def _follow_config(base: _Base, storage: _Storage, replicas: _Replicas, admission: Admission, member: Member) -> None:
    executors, rate, logs = base.executors, storage.broker_configs.rate, storage.logs

    def take(current: BrokerConfig) -> None:
        admission.take_config(current)
        executors.resize_io(current.num_io_threads)
        replicas.fsyncs.resize(current.num_io_threads)
        replicas.reads.resize_remote(current.remote_log_reader_threads)
        replicas.manager.resize_fetchers(current.num_replica_fetchers)
        leaders, followers = rate(LEADER_RATE), rate(FOLLOWER_RATE)
        replicas.manager.set_throttle_rates(leader_bytes_per_s=leaders, follower_bytes_per_s=followers)
        logs.moves.set_rate(rate(MOVE_RATE))

    storage.live_config.subscribe(lambda current: executors.on_loop(take, current))
    storage.live_config.subscribe(base.peers.take_config)
    catalog = storage.metadata.catalog
    storage.live_config.add_check(lambda _, after: catalog.check_defaults(after.topic_defaults))
    storage.live_config.subscribe(lambda current: apply_to_logs(current, logs, catalog, member.take_topic))
