"""The broker without its network: storage, metadata, and what handlers need to answer calls.

Life: ``open`` takes the data directories and recovers, ``announce`` makes the broker known under its address,
``close`` ends cleanly. Handlers run in the event loop; what may wait for a disk runs in ``executors``.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple, ParamSpec, TypeVar, cast

from millrace.config.broker import BrokerConfig, Listener
from millrace.coordination import SessionStore
from millrace.errors import (
    EnvironmentProblemError,
    InconsistentTopicIdError,
    InvalidRequestError,
    MillraceError,
    NotLeaderError,
    StorageError,
    UnknownTopicOrPartitionError,
)
from millrace_broker.cluster.interface import Membership
from millrace_broker.cluster.reconfiguring import reconfigure
from millrace_broker.cluster.standalone import Standalone
from millrace_broker.groups import GroupCoordinator, GroupStatistics
from millrace_broker.log import Files, LogManager, OsFiles, PartitionLog
from millrace_broker.log.cleaning.settings import cleaner_settings
from millrace_broker.log.cleaning.threads import CleanerStatistics
from millrace_broker.log.fsync_batching import FsyncBatching, FsyncStatistics
from millrace_broker.log.starting import Progress
from millrace_broker.log.tiered.manager import TieringStatistics
from millrace_broker.log.tiered.remote_reads import RemoteReaders, RemoteReadStatistics
from millrace_broker.log.tiered.settings import check_tiered_topics, tiering_settings
from millrace_broker.log.tiered.store import ArrowStore
from millrace_broker.metadata import (
    BrokerConfigs,
    GroupConfigs,
    LiveBroker,
    PartitionInfo,
    PayloadSchemas,
    ProducerIds,
    TopicChanges,
    TopicInfo,
)
from millrace_broker.metadata.topic_keys import keys_of
from millrace_broker.network.peers import Peers
from millrace_broker.purgatory import Arrivals, PartitionKey, PurgatoryStatistics, Timer
from millrace_broker.quotas import Admission, AdmissionStatistics
from millrace_broker.replication.runtime import HostedReplica, ReplicaManager, ReplicationStatistics
from millrace_broker.replication.runtime.appending import Appending
from millrace_broker.runtime import Clock, Executors, SystemClock
from millrace_broker.share_groups import ShareCoordinator, ShareStatistics
from millrace_broker.transactions import TransactionCoordinator, TransactionStatistics

if TYPE_CHECKING:
    from millrace_broker.cluster.member import Member
    from millrace_broker.controller.event_loop import ControllingStatistics

_logger = logging.getLogger(__name__)

_P = ParamSpec("_P")
_T = TypeVar("_T")

_TICK_S: Final = 1.0


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
    controlling: ControllingStatistics | None = None
    """None for a broker by itself."""


class ServedPartition(NamedTuple):
    """A partition that this broker leads: what is known of it, and its log."""

    topic: TopicInfo
    info: PartitionInfo
    log: PartitionLog
    replica: HostedReplica | None = None
    """None where no controller has told of the partition: then ``info`` says who leads it."""

    @property
    def key(self) -> PartitionKey:
        """Its name in ``Arrivals``."""
        return self.topic.name, self.info.partition

    @property
    def known_epoch(self) -> int:
        """The term of whoever leads it, as far as is known here."""
        return self.info.leader_epoch if self.replica is None else self.replica.machine.leader_epoch

    @property
    def leader_epoch(self) -> int:
        """The term in which this broker leads it. Raises ``NotLeaderError`` when it does not any more."""
        return self.info.leader_epoch if self.replica is None else self.replica.leader.epoch


class Broker:
    """One broker, by itself or one of a cluster."""

    def __init__(
        self,
        config: BrokerConfig,
        *,
        clock: Clock | None = None,
        files: Files | None = None,
        peers: Peers | None = None,
        store: SessionStore | None = None,
    ) -> None:
        """``store`` is in place of the ZooKeeper that is configured, ``peers`` of the network between brokers."""
        self.config = config
        """What holds now; changed by ``reconfigure`` alone."""
        self.clock: Final[Clock] = clock or SystemClock()
        self.files: Final[Files] = files or OsFiles()
        self.timer: Final = Timer(self.clock)
        self.arrivals: Final = Arrivals("fetch", self.timer)
        """What consumers may read has arrived."""
        self.stable_arrivals: Final = Arrivals("fetch of committed records", self.timer)
        """What consumers of committed records may read has arrived: no transaction is open before it any more."""
        self.appends: Final = Arrivals("produce after another", self.timer)
        """Something was appended, whether or not it may be read yet."""
        self.admission: Final = Admission(config, self.clock.monotonic)
        """Listeners have calls and connections admitted here."""
        self.is_clustered = config.is_clustered
        """Whether a controller says who leads: until it does, nothing is led."""
        self._directories: Final = [Path(name).expanduser().absolute() for name in config.log_directories]
        self.failed: Final = asyncio.Event()
        """Set when the broker cannot go on, because of ``failure``."""
        self.failure: MillraceError | None = None
        self.executors: Final = Executors(config.num_io_threads, self.clock.monotonic)
        self.commits: Final = FsyncBatching(config.num_io_threads)
        self._remote_readers = RemoteReaders(
            config.remote_log_reader_threads, config.remote_log_reader_max_pending_tasks
        )
        self.appending: Final = Appending(self)
        self.append: Final = self.appending.append
        self.append_end_marker: Final = self.appending.append_end_marker
        self.delete_records: Final = self.appending.delete_records
        self.peers: Final = peers or Peers()
        """The way to the other brokers."""
        self.replicas: Final = ReplicaManager(self)
        self.membership: Final[Membership] = self._make_membership(store)
        self.groups: Final = GroupCoordinator(self)
        self.share_groups: Final = ShareCoordinator(self)
        self.transactions: Final = TransactionCoordinator(self)

    # --- life ------------------------------------------------------------------------------------------------

    async def open(self, on_progress: Progress | None = None) -> None:
        """Take the data directories, recover the logs, finish what was interrupted.

        Raises ``EnvironmentProblemError`` when a directory is not writable, in use, or another broker's.
        """
        self.executors.start()
        self.timer.start(asyncio.get_running_loop())
        await self.executors.administer(self._open, on_progress)
        self.replicas.start()
        self.groups.start()
        self.share_groups.start()
        self.transactions.start()

    def _open(self, on_progress: Progress | None) -> None:
        directories = self._directories
        _make_directory(directories[0])  # the others may fail: those with partitions of topics do
        self.coordination, self.cluster_id, self.catalog = self.membership.open()
        self.peers.cluster_id = self.cluster_id
        try:
            self.broker_configs = BrokerConfigs(self.coordination, self.config, self.membership.notices)
            self.config = self.broker_configs.current
            self.catalog.set_defaults(self.config.topic_defaults)
            check_tiered_topics(self.config, {name: topic.config for name, topic in self.catalog.topics.items()})
            self.logs = LogManager.open(
                directories,
                broker_id=self.config.broker_id,
                cluster_id=self.cluster_id,
                defaults=self.config.topic_defaults,
                files=self.files,
                clock=self.clock,
                on_progress=on_progress,
                configs={topic.name: topic.config for topic in self.catalog.topics.values()},
                producer_expiration_ms=self.config.producer_id_expiration_ms,
                retention_check_interval_ms=self.config.log_retention_check_interval_ms,
                initial_task_delay_ms=self.config.log_initial_task_delay_ms,
                recovery_threads=self.config.num_recovery_threads_per_data_dir,
                holds_watermarks=self.is_clustered,
            )
            self._check_directories()
        except BaseException:
            self.membership.disconnect()
            raise
        deployment = self.membership.deploy(self.logs, self._forget)
        self.changes = TopicChanges(self.config, self.coordination, self.catalog, deployment)
        if self.config.log_cleaner_enable:
            self.logs.start_cleaner(cleaner_settings(self.config), keys_of(self.catalog))
        if self.config.remote_log_storage_system_enable:
            self.logs.start_tiering(tiering_settings(self.config), ArrowStore(self.config.remote_log_storage_uri))
        notices = self.membership.notices
        self.group_configs = GroupConfigs(self.coordination, self.config, notices)
        self.payload_schemas = PayloadSchemas(self.coordination, notices)
        self.producer_ids = ProducerIds(self.coordination, self.config.broker_id)
        reconfigure(self)

    def _check_directories(self) -> None:
        """Raise ``StorageError`` when the broker cannot go on: no directory is left, or the metadata's has failed."""
        failed = self.logs.failed_directories()
        metadata = failed.get(self._directories[0])
        if metadata is not None and not self.is_clustered:
            raise StorageError(f"the log directory with the metadata has failed: {metadata.message}")
        if not self.logs.has_directories:
            reasons = "; ".join(error.message for error in failed.values())
            raise StorageError(f"no log directory is left: {reasons}")

    def reached_at(self, address: Listener, frame_port: int) -> None:
        """Clients are to use this address. ``frame_port`` is where they find the same calls as frames; 0: nowhere."""
        self.address = address
        self.frame_port = frame_port

    async def announce(self, address: Listener, frame_port: int = 0) -> None:
        """Register under the address that clients are to use, and begin the periodic work."""
        self.reached_at(address, frame_port)
        await self.membership.announce(address)
        self._ticking = asyncio.create_task(self._tick(), name="millrace-tick")

    async def leave(self) -> None:
        """Let others take over what this broker does, then answer all who wait: it is about to stop."""
        await self.membership.leave()
        self.share_groups.release()
        for arrivals in (self.arrivals, self.stable_arrivals, self.appends):
            arrivals.close()
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
        ticking = getattr(self, "_ticking", None)
        if ticking is not None:
            ticking.cancel()
            await asyncio.gather(ticking, return_exceptions=True)
        await self.executors.finish_tasks()
        try:
            if hasattr(self, "logs"):
                await self.executors.run_io(self.logs.close)
        finally:
            await self.membership.close()
            await self.peers.close()
            self.timer.close()
            self.commits.close()
            self._remote_readers.close()
            self.executors.close()

    async def _tick(self) -> None:
        told_failed = frozenset(self.logs.failed_directories())
        while True:
            await asyncio.sleep(_TICK_S)
            try:
                await self.executors.run_io(self.logs.tick)
                self._check_directories()
                failed = frozenset(self.logs.failed_directories())
                if failed - told_failed:
                    await self.membership.disks_failed()
                    told_failed = failed
            except StorageError as error:
                self.fail(error)
                return
            except Exception:
                _logger.exception("the log's periodic work failed and is tried again")

    def fail(self, error: MillraceError) -> None:
        """The broker cannot go on: have it stopped."""
        _logger.critical("the broker stops: %s", error.message)
        self.failure = error
        self.failed.set()

    # --- reading ---------------------------------------------------------------------------------------------

    async def run_read(
        self, log: PartitionLog, offset: int, function: Callable[_P, _T], *args: _P.args, **kwargs: _P.kwargs
    ) -> _T:
        """Run a function that reads batches from an offset on: at once what was appended a moment ago.

        Otherwise this is ``run_search``, and raises what that does.
        """
        if log.is_recent(offset) and self.executors.small_work.includes(0):
            return self.executors.small_work.do(function, *args, **kwargs)
        return await self.run_search(log, offset, function, *args, **kwargs)

    async def run_search(
        self, log: PartitionLog, offset: int, function: Callable[_P, _T], *args: _P.args, **kwargs: _P.kwargs
    ) -> _T:
        """Run a function that looks into a log from an offset on, at indexes and aborted transactions as well.

        Never in the event loop, and apart from others if it must wait for the remote store. Raises ``ThrottledError``
        when too many wait for that.
        """
        if log.is_remote(offset):
            return await self._remote_readers.run(lambda: function(*args, **kwargs))
        return await self.executors.run_io(function, *args, **kwargs)

    # --- partitions ------------------------------------------------------------------------------------------

    def topic(self, name: str, topic_id: bytes = b"") -> TopicInfo:
        """The topic of that name, whose id is the given one unless that is empty.

        Raises ``UnknownTopicOrPartitionError``, ``InconsistentTopicIdError``.
        """
        topic = self.catalog.topic(name)
        if topic_id and topic_id != topic.topic_id.bytes:
            raise InconsistentTopicIdError(
                f"topic {name} was deleted and created again: its id is not the one asked for. Fetch the metadata anew"
            )
        return topic

    async def find_topic(self, name: str) -> TopicInfo:
        """The topic of that name, also if this broker of a cluster has not heard of it, or of its leaders, yet.

        Raises as ``topic`` does.
        """
        known = self.catalog.topics.get(name)
        if known is None or any(each.leader_epoch < 0 for each in known.partitions.values()):
            await self.membership.find(name)
        return self.topic(name)

    def partition(self, topic: TopicInfo, number: int, *, may_follow: bool = False) -> ServedPartition:
        """A partition that this broker leads, or follows if that will do.

        Raises ``UnknownTopicOrPartitionError``, ``NotLeaderError``.
        """
        info = topic.partition(number)
        replica = self.replicas.find(topic.name, number)
        if replica is not None:
            if not may_follow or replica.follower is None:
                replica.check_leads()
        elif info.leader != self.config.broker_id or self.is_clustered:
            raise NotLeaderError(f"{topic.name}-{number} is led by broker {info.leader}: fetch the metadata anew")
        log = self.logs.get(topic.name, number)
        if log is None or log.topic_id != topic.topic_id:
            # Its files are being made or deleted in this moment.
            raise UnknownTopicOrPartitionError(f"{topic.name}-{number} is not there (yet, or any more)")
        return ServedPartition(topic, info, log, replica)

    def _forget(self, topic: TopicInfo) -> None:
        """Wake and forget whoever deals with a topic that is gone. Called in the administration thread."""

        def forget() -> None:
            for number in topic.partitions:
                key = topic.name, number
                self.appending.changed(key)
                self.appending.locks.pop(key, None)
            self.groups.topic_deleted(topic.name)
            self.share_groups.topic_deleted(topic)

        self.executors.on_loop(forget)

    # --- the cluster -----------------------------------------------------------------------------------------

    def _make_membership(self, store: SessionStore | None) -> Membership:
        if not self.config.is_clustered:
            return Standalone(self, self._directories[0], self.files)
        from millrace_broker.cluster.member import Member  # not for a broker by itself

        return Member(self, self._directories, store)

    @property
    def member(self) -> Member:
        """This broker as one of a cluster. Raises ``InvalidRequestError`` where it is by itself."""
        if not self.config.is_clustered:
            raise InvalidRequestError(f"broker {self.config.broker_id} is by itself: no controller has a say here")
        return cast("Member", self.membership)

    def live_brokers(self) -> Sequence[LiveBroker]:
        """The brokers of the cluster that are up, by id. Raises ``BrokerUnavailableError`` while they are not known."""
        return self.membership.live_brokers()

    def statistics(self) -> BrokerStatistics:
        """The present numbers."""
        return BrokerStatistics(
            topics=len(self.catalog.topics),
            partitions=self.catalog.partition_count,
            admission=self.admission.statistics(),
            delayed_fetches=self.arrivals.statistics(),
            delayed_committed_fetches=self.stable_arrivals.statistics(),
            fsyncs=self.commits.statistics(),
            replication=self.replicas.statistics(),
            remote_reads=self._remote_readers.statistics(),
            cleaner=None if self.logs.cleaner is None else self.logs.cleaner.statistics(),
            tiering=None if self.logs.tiering is None else self.logs.tiering.statistics(),
            groups=self.groups.statistics(),
            share_groups=self.share_groups.statistics(),
            transactions=self.transactions.statistics(),
            controlling=self.member.controlling.statistics() if self.config.is_clustered else None,
        )


def _make_directory(directory: Path) -> None:
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise EnvironmentProblemError(f"cannot make the data directory {directory}: {error.strerror}") from error
    if not os.access(directory, os.W_OK | os.X_OK):
        raise EnvironmentProblemError(
            f"the data directory {directory} is not writable for this user: change its owner, or set log.dirs"
        )
