"""Record of a broker's parts, and their life cycle, without the listeners.

``opening`` builds each part from the few parts it uses. Only call handlers get the whole broker: those of
``millrace_broker.api``, the translations in ``millrace_broker.kafka_api``, and the listeners that run both.
``Broker.announce`` registers the broker's addresses, and ``Broker.close`` shuts down cleanly.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from millrace.config.broker import BrokerConfig
from millrace.config.listeners import Listener
from millrace.coordination import Coordination
from millrace_broker.audit import Audit, AuditStatistics
from millrace_broker.cluster.member import Member
from millrace_broker.cluster.token_expiry import TokenExpiry
from millrace_broker.config import LiveConfig
from millrace_broker.controller.event_loop import ControllerLoopStatistics
from millrace_broker.coordinators import InternalTopics
from millrace_broker.groups import GroupCoordinator, GroupStatistics
from millrace_broker.log import LogManager
from millrace_broker.log.cleaning.log_cleaner import CleanerStatistics
from millrace_broker.log.fsync_batching import FsyncBatching, FsyncStatistics
from millrace_broker.log.periodic_work import PeriodicWork
from millrace_broker.log.read_ahead import ReadAhead
from millrace_broker.log.read_threads import LogReads
from millrace_broker.log.remote_log_manager import TieringStatistics
from millrace_broker.log.tiered.remote_reads import RemoteReadStatistics
from millrace_broker.metadata import (
    BrokerConfigs,
    ClientMetricsConfigs,
    GroupConfigs,
    PayloadSchemas,
    ProducerIds,
    QuotaConfigs,
    RecordCodecs,
    ScramCredentials,
    TopicCatalog,
    TopicChanges,
)
from millrace_broker.network import Peers
from millrace_broker.purgatory import PurgatoryStatistics, Timer
from millrace_broker.quotas import Admission, AdmissionStatistics, ClientQuotas, QuotaUse
from millrace_broker.replication.runtime import (
    Appends,
    PartitionDirectory,
    ReplicaManager,
    ReplicationStatistics,
    Waiters,
)
from millrace_broker.runtime import Clock, Executors, Failure
from millrace_broker.security import Authorizer, DelegationTokens, Logins
from millrace_broker.share_groups import ShareCoordinator, ShareStatistics
from millrace_broker.transactions import TransactionCoordinator, TransactionStatistics


@dataclass(frozen=True, slots=True)
class BrokerStatistics:
    """Current statistics of the broker."""

    topics: int
    partitions: int
    admission: AdmissionStatistics
    quotas: tuple[QuotaUse, ...]
    connections_delayed: int
    connections_refused: int
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
    controlling: ControllerLoopStatistics
    audit: AuditStatistics | None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Broker:
    """One broker of a cluster. ``opening`` builds it."""

    endpoints: Mapping[str, Listener]
    """Advertised addresses of the listeners, by their names."""
    clock: Clock
    timer: Timer
    executors: Executors
    failure: Failure
    peers: Peers
    """Calls to other brokers."""
    admission: Admission
    """Admission of the listeners' calls and connections."""
    client_quotas: ClientQuotas
    """Quotas of clients, as the listeners enforce them."""
    authorizer: Authorizer | None
    """None without access control, so that every client may make every call."""
    audit: Audit | None
    """None if the audit is disabled."""

    coordination: Coordination
    cluster_id: str
    catalog: TopicCatalog
    changes: TopicChanges
    live_config: LiveConfig
    broker_configs: BrokerConfigs
    group_configs: GroupConfigs
    scram_credentials: ScramCredentials
    delegation_tokens: DelegationTokens
    token_expiry: TokenExpiry
    quota_configs: QuotaConfigs
    client_metrics: ClientMetricsConfigs
    payload_schemas: PayloadSchemas
    record_codecs: RecordCodecs
    producer_ids: ProducerIds
    internal_topics: InternalTopics

    logs: LogManager
    reads: LogReads
    read_ahead: ReadAhead
    fsyncs: FsyncBatching
    periodic_work: PeriodicWork
    waiters: Waiters
    replicas: ReplicaManager
    partitions: PartitionDirectory
    appends: Appends

    member: Member
    groups: GroupCoordinator
    share_groups: ShareCoordinator
    transactions: TransactionCoordinator

    @property
    def logins(self) -> Logins:
        """The look-ups of SCRAM credentials, for the listeners."""
        return Logins(self.scram_credentials.get, self.delegation_tokens.login, self.scram_credentials.model)

    @property
    def config(self) -> BrokerConfig:
        """The configuration in force."""
        return self.live_config.current

    async def announce(self) -> None:
        """Register the advertised addresses, and start the periodic work."""
        await self.member.announce(self.endpoints)
        self.periodic_work.start()
        self.token_expiry.start()
        if self.audit is not None:
            self.audit.start()

    async def leave(self) -> None:
        """Hand leadership to other brokers, then answer all waiting calls, because the broker is about to stop."""
        if self.audit is not None:
            await self.audit.stop()
        await self.member.leave()
        self.share_groups.release()
        self.waiters.close()
        self.replicas.release()
        self.groups.release()
        self.transactions.release()

    async def close(self) -> None:
        """Finish started work, write checkpoints and clean-shutdown marks, and unlock the directories."""
        self.replicas.release()
        if self.audit is not None:
            await self.audit.close()
        await self.transactions.close()
        await self.share_groups.close()
        await self.groups.close()
        await self.replicas.close()
        await self.token_expiry.close()
        await self.periodic_work.close()
        await self.executors.finish_tasks()
        try:
            await self.executors.run_io(self.logs.close)
        finally:
            await self.member.close()
            await self.peers.close()
            self.timer.close()
            self.fsyncs.close()
            self.reads.close()
            self.executors.close()

    def statistics(self) -> BrokerStatistics:
        """Return the current statistics."""
        return BrokerStatistics(
            topics=len(self.catalog.topics),
            partitions=self.catalog.partition_count,
            admission=self.admission.statistics(),
            quotas=self.client_quotas.statistics(),
            connections_delayed=self.client_quotas.connections.delayed,
            connections_refused=self.client_quotas.connections.refused,
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
            controlling=self.member.controlling.statistics(),
            audit=None if self.audit is None else self.audit.statistics(),
        )
