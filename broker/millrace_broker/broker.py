"""The broker without its network: storage, metadata, and what handlers need to answer calls.

Life: ``open`` takes the data directories and recovers, ``announce`` makes the broker known under its address,
``close`` ends cleanly. Handlers run in the event loop; whatever may wait for the disk runs in one of two
pools: ``run_io`` for logs, ``administer`` (one thread) for changes of metadata. Small appends do not (``small_work``).

Invariants
* Batches of one partition are appended in the order in which ``append`` was called. Waiting for the disk, where the
  topic wants that, comes after the append and keeps no other one waiting.
* An append that has begun is finished and its readers are told, also when the call that asked for it is cancelled.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import os
from collections import defaultdict
from collections.abc import Callable, Coroutine, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple, ParamSpec, TypeVar

from millrace.config.broker import BrokerConfig, Listener
from millrace.coordination import METADATA_FILE, Coordination, EmbeddedStore
from millrace.coordination.nodes import BrokerNode
from millrace.errors import (
    EnvironmentProblemError,
    InconsistentTopicIdError,
    NotLeaderError,
    StorageError,
    UnknownTopicOrPartitionError,
)
from millrace.records import EndTransactionMarker
from millrace_broker.compaction import cleaner_settings, keys_of
from millrace_broker.environment import Clock, SystemClock
from millrace_broker.group_commit import GroupCommit, GroupCommitStatistics
from millrace_broker.groups import GroupCoordinator, GroupStatistics
from millrace_broker.limits import ByteBudget, LimitStatistics, RequestLimits, SizeEstimate
from millrace_broker.log import AppendResult, Files, LogManager, OsFiles, PartitionLog, read_meta_properties
from millrace_broker.log.producers import Origin
from millrace_broker.log.starting import Progress
from millrace_broker.log.tiered.manager import TieringStatistics
from millrace_broker.log.tiered.store import ArrowStore
from millrace_broker.metadata import (
    GroupConfigs,
    LiveBroker,
    PartitionInfo,
    PayloadSchemas,
    ProducerIds,
    TopicCatalog,
    TopicChanges,
    TopicInfo,
    registration,
)
from millrace_broker.purgatory import Arrivals, PartitionKey, PurgatoryStatistics, Timer
from millrace_broker.remote_reads import RemoteReaders, RemoteReadStatistics
from millrace_broker.share_groups import ShareCoordinator, ShareStatistics
from millrace_broker.small_work import SmallWork, begun
from millrace_broker.tiering import check_tiered_topics, tiering_settings
from millrace_broker.transactions import TransactionCoordinator, TransactionStatistics

_logger = logging.getLogger(__name__)

_P = ParamSpec("_P")
_T = TypeVar("_T")

_TICK_S: Final = 1.0
_MARKER_BYTES: Final = 78
"""Size of a batch with the end of a transaction."""
_FIRST_BODIES: Final = 4
"""So many bodies are received at a time before anything is known of their sizes."""


@dataclass(frozen=True, slots=True)
class BrokerStatistics:
    """What the broker is doing now."""

    topics: int
    partitions: int
    limits: LimitStatistics
    delayed_fetches: PurgatoryStatistics
    delayed_committed_fetches: PurgatoryStatistics
    group_commit: GroupCommitStatistics
    remote_reads: RemoteReadStatistics
    tiering: TieringStatistics | None
    groups: GroupStatistics
    share_groups: ShareStatistics
    transactions: TransactionStatistics


class ServedPartition(NamedTuple):
    """A partition that this broker leads: what is known of it, and its log."""

    topic: TopicInfo
    info: PartitionInfo
    log: PartitionLog

    @property
    def key(self) -> PartitionKey:
        """Its name in ``Arrivals``."""
        return self.topic.name, self.info.partition


class Broker:
    """One broker of a cluster; today also its only one and its controller."""

    def __init__(self, config: BrokerConfig, *, clock: Clock | None = None, files: Files | None = None) -> None:
        self.config: Final = config
        self.clock: Final[Clock] = clock or SystemClock()
        self._files: Final[Files] = files or OsFiles()
        self.timer: Final = Timer(self.clock)
        self.arrivals: Final = Arrivals("fetch", self.timer)
        """What consumers may read has arrived."""
        self.stable_arrivals: Final = Arrivals("fetch of committed records", self.timer)
        """What consumers of committed records may read has arrived: no transaction is open before it any more."""
        self._stable_offsets: dict[PartitionKey, int] = {}
        self._unstable_bytes: dict[PartitionKey, int] = {}
        self.appends: Final = Arrivals("produce after another", self.timer)
        """Something was appended, whether or not it may be read yet."""
        self.limits: Final = RequestLimits(
            requests_max=config.queued_max_requests,
            connections_max=config.max_connections,
            monotonic=self.clock.monotonic,
        )
        self.body_estimate: Final = SizeEstimate(config.queued_max_request_bytes // _FIRST_BODIES)
        self.request_bytes: Final = ByteBudget(config.queued_max_request_bytes)
        self.response_bytes: Final = ByteBudget(config.queued_max_request_bytes)
        self._directories: Final = [Path(name).expanduser().absolute() for name in config.log_directories]
        self.failed: Final = asyncio.Event()
        """Set when the broker cannot go on, because of ``failure``."""
        self.failure: StorageError | None = None
        self.small_work: Final = SmallWork(self.clock.monotonic)
        self._io = ThreadPoolExecutor(config.num_io_threads, thread_name_prefix="millrace-io")
        self._commits = GroupCommit(config.num_io_threads)
        self._remote_readers = RemoteReaders(
            config.remote_log_reader_threads, config.remote_log_reader_max_pending_tasks
        )
        self._administration = ThreadPoolExecutor(1, thread_name_prefix="millrace-administration")
        self._append_locks: defaultdict[PartitionKey, asyncio.Lock] = defaultdict(asyncio.Lock)
        self._tasks: set[asyncio.Task[Any]] = set()
        self.groups: Final = GroupCoordinator(self)
        self.share_groups: Final = ShareCoordinator(self)
        self.transactions: Final = TransactionCoordinator(self)

    # --- life ------------------------------------------------------------------------------------------------

    async def open(self, on_progress: Progress | None = None) -> None:
        """Take the data directories, recover the logs, finish what was interrupted.

        Raises ``EnvironmentProblemError`` when a directory is not writable, in use, or another broker's.
        """
        self._loop = asyncio.get_running_loop()
        self.timer.start(self._loop)
        await self.administer(self._open, on_progress)
        self.groups.start()
        self.share_groups.start()
        self.transactions.start()

    def _open(self, on_progress: Progress | None) -> None:
        directories = self._directories
        _make_directory(directories[0])  # the others may fail: those with partitions of topics do
        self._check_metadata_file(directories[0])
        self._store = EmbeddedStore(directories[0] / METADATA_FILE, now_ms=self.clock.now_ms)
        try:
            self.coordination: Coordination = self._store.connect()
            registration.ensure_roots(self.coordination)
            self.cluster_id = registration.cluster_id(self.coordination)
            self.catalog = TopicCatalog(self.coordination, self.config.topic_defaults)
            self.catalog.load()
            check_tiered_topics(self.config, self.catalog.topics.values())
            self.logs = LogManager.open(
                directories,
                broker_id=self.config.broker_id,
                cluster_id=self.cluster_id,
                defaults=self.config.topic_defaults,
                files=self._files,
                clock=self.clock,
                on_progress=on_progress,
                configs={topic.name: topic.config for topic in self.catalog.topics.values()},
                producer_expiration_ms=self.config.producer_id_expiration_ms,
                retention_check_interval_ms=self.config.log_retention_check_interval_ms,
                recovery_threads=self.config.num_recovery_threads_per_data_dir,
            )
            self._check_directories()
        except BaseException:
            self._store.close()
            raise
        self.controller_epoch = registration.become_controller(
            self.coordination, self.config.broker_id, now_ms=self.clock.now_ms()
        )
        self.changes = TopicChanges(
            self.config,
            self.coordination,
            self.catalog,
            self.logs,
            controller_epoch=self.controller_epoch,
            on_gone=self._forget,
        )
        self.changes.resume()
        if self.config.log_cleaner_enable:
            self.logs.start_cleaner(cleaner_settings(self.config), keys_of(self.catalog))
        if self.config.remote_log_storage_system_enable:
            self.logs.start_tiering(tiering_settings(self.config), ArrowStore(self.config.remote_log_storage_uri))
        self.group_configs = GroupConfigs(self.coordination, self.config)
        self.payload_schemas = PayloadSchemas(self.coordination)
        self.producer_ids = ProducerIds(self.coordination, self.config.broker_id)

    def _check_metadata_file(self, directory: Path) -> None:
        """Refuse to begin a new cluster's metadata beside the data of an old one."""
        if not (directory / METADATA_FILE).exists() and (owner := read_meta_properties(self._files, directory)):
            raise EnvironmentProblemError(
                f"{directory} holds data of broker {owner.get('broker.id')} of cluster {owner.get('cluster.id')}, but "
                f"not its metadata ({METADATA_FILE}): keep the order of log.dirs, or use another data directory"
            )

    def _check_directories(self) -> None:
        """Raise ``StorageError`` when the broker cannot go on: no directory is left, or the metadata's has failed."""
        failed = self.logs.failed_directories()
        metadata = failed.get(self._directories[0])
        if metadata is not None:
            raise StorageError(f"the log directory with the metadata has failed: {metadata.message}")
        if not self.logs.has_directories:
            reasons = "; ".join(error.message for error in failed.values())
            raise StorageError(f"no log directory is left: {reasons}")

    async def announce(self, address: Listener, frame_port: int = 0) -> None:
        """Register under the address that clients are to use, and begin the periodic work.

        ``frame_port`` is where they find the same calls as frames; 0: nowhere.
        """
        self.address = address
        self.frame_port = frame_port
        node = BrokerNode(
            host=address.host, port=address.port, rack=self.config.broker_rack, timestamp_ms=self.clock.now_ms()
        )
        await self.administer(registration.register, self.coordination, self.config.broker_id, node)
        self._ticking = asyncio.create_task(self._tick(), name="millrace-tick")

    async def close(self) -> None:
        """Finish what has begun, write checkpoints and the clean-shutdown marks, let go of the directories."""
        await self.transactions.close()
        await self.share_groups.close()
        await self.groups.close()
        ticking = getattr(self, "_ticking", None)
        if ticking is not None:
            ticking.cancel()
            await asyncio.gather(ticking, return_exceptions=True)
        if self._tasks:
            await asyncio.gather(*self._tasks, return_exceptions=True)
        try:
            if hasattr(self, "logs"):
                await self.run_io(self.logs.close)
        finally:
            if hasattr(self, "_store"):
                await self.administer(self._store.close)
            self.timer.close()
            self._commits.close()
            self._remote_readers.close()
            self._io.shutdown()
            self._administration.shutdown()

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(_TICK_S)
            try:
                await self.run_io(self.logs.tick)
                self._check_directories()
            except StorageError as error:
                _logger.critical("the broker stops: %s", error.message)
                self.failure = error
                self.failed.set()
                return
            except Exception:
                _logger.exception("the log's periodic work failed and is tried again")

    # --- threads ---------------------------------------------------------------------------------------------

    async def run_io(self, function: Callable[_P, _T], *args: _P.args, **kwargs: _P.kwargs) -> _T:
        """Run a function that touches logs on disk, outside the event loop."""
        return await asyncio.get_running_loop().run_in_executor(self._io, lambda: function(*args, **kwargs))

    async def run_sized(self, size_bytes: int, function: Callable[_P, _T], *args: _P.args, **kwargs: _P.kwargs) -> _T:
        """Run a function on so many bytes that are in memory: at once if they are few."""
        if self.small_work.includes(size_bytes):
            return self.small_work.do(function, *args, **kwargs)
        return await self.run_io(function, *args, **kwargs)

    async def run_read(
        self, log: PartitionLog, offset: int, function: Callable[_P, _T], *args: _P.args, **kwargs: _P.kwargs
    ) -> _T:
        """Run a function that reads batches from an offset on: at once what was appended a moment ago.

        Otherwise this is ``run_search``, and raises what that does.
        """
        if log.is_recent(offset) and self.small_work.includes(0):
            return self.small_work.do(function, *args, **kwargs)
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
        return await self.run_io(function, *args, **kwargs)

    async def administer(self, function: Callable[_P, _T], *args: _P.args, **kwargs: _P.kwargs) -> _T:
        """Run a function that touches metadata: one at a time, to its end even if the caller is cancelled."""
        return await asyncio.get_running_loop().run_in_executor(self._administration, lambda: function(*args, **kwargs))

    async def to_the_end(self, work: Coroutine[Any, Any, _T]) -> _T:
        """Wait for ``work``; if the caller is cancelled meanwhile, ``work`` goes on all the same."""
        return await begun(work, self._start)

    def _start(self, work: Coroutine[Any, Any, _T]) -> asyncio.Task[_T]:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

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

    def partition(self, topic: TopicInfo, number: int) -> ServedPartition:
        """A partition that this broker leads. Raises ``UnknownTopicOrPartitionError``, ``NotLeaderError``."""
        info = topic.partitions.get(number)
        if info is None:
            raise UnknownTopicOrPartitionError(
                f"topic {topic.name} has partitions 0 to {len(topic.partitions) - 1}, not {number}"
            )
        if info.leader != self.config.broker_id:
            raise NotLeaderError(f"{topic.name}-{number} is led by broker {info.leader}: fetch the metadata anew")
        log = self.logs.get(topic.name, number)
        if log is None or log.topic_id != topic.topic_id:
            # Its files are being made or deleted in this moment.
            raise UnknownTopicOrPartitionError(f"{topic.name}-{number} is not there (yet, or any more)")
        return ServedPartition(topic, info, log)

    async def append(
        self,
        partition: ServedPartition,
        records: bytes,
        *,
        in_transaction: bool = False,
        origin: Origin = Origin.CLIENT,
    ) -> AppendResult:
        """Append whole batches, as durably as the topic wants it, and tell those who wait for them.

        ``in_transaction`` says that a coordinator knows the transaction that the batch says it is in; with another
        ``origin`` less is checked. Raises what the log raises.
        """
        epoch = partition.info.leader_epoch
        async with self._append_locks[partition.key]:
            result = None
            if self.small_work.includes(len(records)):
                result = self.small_work.do(
                    partition.log.append_at_once,
                    records,
                    leader_epoch=epoch,
                    in_transaction=in_transaction,
                    origin=origin,
                )
            if result is None:
                result = await self.run_io(
                    partition.log.append_unsynced,
                    records,
                    leader_epoch=epoch,
                    in_transaction=in_transaction,
                    origin=origin,
                )
        await self._appended(partition, result, len(records))
        return result

    async def append_end_marker(
        self,
        partition: ServedPartition,
        producer_id: int,
        producer_epoch: int,
        marker: EndTransactionMarker,
        *,
        is_epoch_raised: bool,
    ) -> None:
        """Append the end of a producer's transaction, as durably as the topic wants it. Raises what the log raises."""
        write = functools.partial(
            partition.log.append_end_marker_unsynced,
            producer_id,
            producer_epoch,
            marker,
            leader_epoch=partition.info.leader_epoch,
            is_epoch_raised=is_epoch_raised,
        )
        async with self._append_locks[partition.key]:
            result = None
            if self.small_work.includes(_MARKER_BYTES):
                result = self.small_work.do(write, may_wait=False)
            if result is None:
                result = await self.run_io(write)
        assert result is not None, "it may wait in a thread"
        await self._appended(partition, result, _MARKER_BYTES)

    async def _appended(self, partition: ServedPartition, result: AppendResult, size_bytes: int) -> None:
        """Wait for the disk where the topic wants that, and tell those who wait for what was appended."""
        key, log = partition.key, partition.log
        self.appends.arrived(key, size_bytes)
        if log.must_sync(result):
            await self._commits.synced(log, result.last_offset + 1)
        elif log.config.flush_ms < _TICK_S * 1000:
            self._commits.sync_within(log, log.config.flush_ms / 1000)
        self.arrivals.arrived(key, size_bytes)
        unstable_bytes = self._unstable_bytes.pop(key, 0) + size_bytes
        stable_offset = log.last_stable_offset
        if stable_offset > self._stable_offsets.get(key, -1):
            self._stable_offsets[key] = stable_offset
            self.stable_arrivals.arrived(key, unstable_bytes)
        if stable_offset < log.high_watermark:
            self._unstable_bytes[key] = unstable_bytes

    async def delete_records(self, partition: ServedPartition, before_offset: int) -> int:
        """Delete the records before an offset; returns where the log starts then. Raises what the log raises."""
        try:
            return await self.run_io(self.logs.delete_records, *partition.key, before_offset)
        finally:
            self.arrivals.changed(partition.key)
            self.stable_arrivals.changed(partition.key)

    def _forget(self, topic: TopicInfo) -> None:
        """Wake and forget whoever deals with a topic that is gone. Called in the administration thread."""

        def forget() -> None:
            for number in topic.partitions:
                key = topic.name, number
                for arrivals in (self.arrivals, self.stable_arrivals, self.appends):
                    arrivals.changed(key)
                for known in (self._append_locks, self._stable_offsets, self._unstable_bytes):
                    known.pop(key, None)
            self.groups.topic_deleted(topic.name)
            self.share_groups.topic_deleted(topic)

        self._loop.call_soon_threadsafe(forget)

    # --- the cluster -----------------------------------------------------------------------------------------

    def live_brokers(self) -> Iterable[LiveBroker]:
        """The brokers of the cluster that are up, by id."""
        return registration.live_brokers(self.coordination)

    def statistics(self) -> BrokerStatistics:
        """The present numbers."""
        return BrokerStatistics(
            topics=len(self.catalog.topics),
            partitions=self.catalog.partition_count,
            limits=LimitStatistics(
                requests=self.limits.requests,
                connections=self.limits.connections,
                bytes_in_use=self.request_bytes.in_use_bytes + self.response_bytes.in_use_bytes,
                refused=self.limits.refused,
                delayed=self.request_bytes.delayed + self.response_bytes.delayed,
            ),
            delayed_fetches=self.arrivals.statistics(),
            delayed_committed_fetches=self.stable_arrivals.statistics(),
            group_commit=self._commits.statistics(),
            remote_reads=self._remote_readers.statistics(),
            tiering=None if self.logs.tiering is None else self.logs.tiering.statistics(),
            groups=self.groups.statistics(),
            share_groups=self.share_groups.statistics(),
            transactions=self.transactions.statistics(),
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
