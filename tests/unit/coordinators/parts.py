"""Parts with coordinators' state, on real logs, without a broker."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from millrace.config.broker import BrokerConfig
from millrace.errors import RequestTimedOutError
from millrace_broker.cluster.member import Member
from millrace_broker.cluster.opened_metadata import OpenedMetadata, open_metadata
from millrace_broker.cluster.shared_security import SharedSecurity
from millrace_broker.config import LiveConfig
from millrace_broker.coordinators import InternalTopics, ShardFactory
from millrace_broker.log import LogManager, OsFiles
from millrace_broker.log.fsync_batching import FsyncBatching
from millrace_broker.log.read_threads import LogReads
from millrace_broker.log.tiered.remote_reads import RemoteReaders
from millrace_broker.metadata import BrokerConfigs, TopicChanges
from millrace_broker.metadata.gone_topics import GoneTopics
from millrace_broker.network import PeerListener, Peers
from millrace_broker.purgatory import Timer
from millrace_broker.replication.runtime import Appends, HostedReplica, PartitionDirectory, ReplicaManager, Waiters
from millrace_broker.replication.runtime.delayed_produce import DelayedProduce
from millrace_broker.runtime import Executors, Failure, SystemClock
from millrace_broker.security import DelegationTokens


@dataclass(frozen=True)
class Parts:
    replicas: ReplicaManager
    topics: InternalTopics
    shards: ShardFactory
    executors: Executors


class LateReplicas:
    """A replica that waits for followers although it has none.

    These followers are late until ``are_late`` is false. Calls to coordinators wait for 0.05 s.
    """

    def __init__(self, patched: pytest.MonkeyPatch, replica: HostedReplica | None) -> None:
        assert replica is not None
        self.are_late = True
        patched.setattr(replica, "is_alone", False)
        patched.setattr(DelayedProduce, "acknowledged", self._acknowledged)
        for module in ("coordinators.state_log", "groups.entries"):
            patched.setattr(f"millrace_broker.{module}.ACKNOWLEDGED_WITHIN_S", 0.05)

    async def _acknowledged(self, *arguments: object, **options: object) -> None:
        await asyncio.sleep(0)
        if self.are_late:
            raise RequestTimedOutError("the replicas in sync did not get the records in time")


@asynccontextmanager
async def opened_parts(directory: Path, **options: str) -> AsyncIterator[Parts]:
    values = {"log.dirs": str(directory), "offsets.topic.num.partitions": "3", **options}
    config, clock, files = BrokerConfig.load(values), SystemClock(), OsFiles()
    executors, fsyncs = Executors(2, clock.monotonic), FsyncBatching(2)
    reads = LogReads(executors, RemoteReaders(1, 1))
    timer = Timer(clock)
    timer.start(asyncio.get_running_loop())
    directory.mkdir(exist_ok=True)
    metadata = open_metadata(config, directories=[directory], files=files, clock=clock)
    catalog, coordination, broker_id = metadata.catalog, metadata.coordination, config.broker_id
    logs = LogManager.open(
        [directory],
        broker_id=broker_id,
        cluster_id=metadata.cluster_id,
        defaults=config.topic_defaults,
        files=files,
        clock=clock,
        configs={name: topic.config for name, topic in catalog.topics.items()},
        holds_watermarks=True,
    )
    gone = GoneTopics(executors)
    waiters = Waiters(timer)
    peers = Peers(PeerListener("PLAINTEXT"))
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
    )
    member = _member(config, directory, metadata, timer, executors, peers, logs, replicas, gone)
    changes = TopicChanges(config, coordination, catalog, configured=member.take_topic, gone=gone.report)
    await member.announce(config.advertised_addresses)
    partitions = PartitionDirectory(broker_id, catalog, logs, find_replica=replicas.find, look_up=member.topics.find)
    topics = InternalTopics(
        config, catalog=catalog, changes=changes, executors=executors, await_leaders=member.topics.led
    )
    shards = ShardFactory(
        topics=topics,
        partitions=partitions,
        appends=Appends(executors, logs, fsyncs, waiters, replicas),
        replicas=replicas,
        executors=executors,
        clock=clock,
    )
    try:
        yield Parts(replicas, topics, shards, executors)
    finally:
        await replicas.close()
        await executors.run_io(logs.close)
        await member.close()
        timer.close()
        fsyncs.close()
        reads.close()
        executors.close()


def _member(
    config: BrokerConfig,
    directory: Path,
    metadata: OpenedMetadata,
    timer: Timer,
    executors: Executors,
    peers: Peers,
    logs: LogManager,
    replicas: ReplicaManager,
    gone: GoneTopics,
) -> Member:
    coordination = metadata.coordination
    return Member(
        config,
        directories=[directory],
        metadata=metadata,
        live=LiveConfig(BrokerConfigs(coordination, config)),
        entity_types={},
        security=SharedSecurity(None, DelegationTokens.of(config, coordination, SystemClock().now_ms)),
        clock=SystemClock(),
        timer=timer,
        executors=executors,
        files=OsFiles(),
        peers=peers,
        logs=logs,
        replicas=replicas,
        gone=gone,
        fail=Failure().fail,
    )
