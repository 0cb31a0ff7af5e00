"""Real brokers in one event loop, with a scripted controller.

The brokers share a store in memory. ``ReplicaCluster`` holds the controller's node there, so that no broker is elected,
and makes all decisions. Replicas act on its requests only.
"""

from __future__ import annotations

import asyncio
import threading
import uuid
from collections.abc import Callable, Coroutine, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

from millrace.clients import Consumer
from millrace.clients import TopicPartition as Place
from millrace.config.broker import BrokerConfig
from millrace.config.listeners import Listener, listeners_at
from millrace.coordination import Coordination, EmbeddedStore, ensure_path, paths
from millrace.coordination.nodes import ConfigNode, ControllerNode, TopicNode
from millrace.errors import FencedLeaderEpochError, InvalidUpdateVersionError, MillraceError
from millrace.protocol import millrace_pb2 as pb
from millrace.records import Record, build_rows_batch
from millrace_broker.broker import Broker
from millrace_broker.decisions import (
    IsrChange,
    LeaderAndIsrRequest,
    LeaderAndIsrState,
    Leadership,
    ReplicaAssignment,
    StopReplicaRequest,
    StopReplicaState,
    TopicPartition,
    UpdateMetadataRequest,
)
from millrace_broker.log import PartitionLog
from millrace_broker.metadata import LiveBroker, registration
from millrace_broker.replication.core import Follower, Leader
from millrace_broker.server import BrokerServer

from .waiting import AN_HOUR_MS, STALL_S, Stall, eventually, eventually_async

T = TypeVar("T")
LAG_MS = 1000
LONG_LAG = {"replica.lag.time.max.ms": str(AN_HOUR_MS)}
"""Options with which followers stay in the ISR until ``ReplicaCluster.set_lag``."""
NOW_MS = 1_700_000_000_000
OPTIONS = {
    "replica.lag.time.max.ms": str(LAG_MS),
    "replica.fetch.wait.max.ms": "100",
    "replica.fetch.backoff.ms": "50",
    "replica.high.watermark.checkpoint.interval.ms": "100",
    "group.initial.rebalance.delay.ms": "0",
    "log.retention.ms": "-1",
    "controlled.shutdown.enable": "false",  # the scripted controller has no listener
}


class _Sessions:
    """The shared store, as one broker opens and closes it."""

    def __init__(self, store: EmbeddedStore) -> None:
        self._store = store
        self._sessions: list[Coordination] = []

    def connect(self) -> Coordination:
        self._sessions.append(self._store.connect())
        return self._sessions[-1]

    def close(self) -> None:
        for session in self._sessions:
            session.close()


class ReplicaCluster:
    """Brokers 1, 2, ... as a context manager."""

    def __init__(self, directory: Path, brokers: int = 3, options: Mapping[str, str] | None = None) -> None:
        self._directory = directory
        self._options = OPTIONS | dict(options or {})
        self.ids = range(1, brokers + 1)
        self.servers: dict[int, BrokerServer] = {}
        self.addresses: dict[int, int] = {}
        self.topic_ids: dict[str, uuid.UUID] = {}
        self.configs: dict[str, dict[str, str]] = {}
        self.assignments: dict[TopicPartition, ReplicaAssignment] = {}
        self.leadership: dict[TopicPartition, Leadership] = {}
        self.epoch = 1
        self.isr_changes: list[tuple[TopicPartition, tuple[int, ...]]] = []
        self.refuses_isr: Callable[[], MillraceError | None] = lambda: None
        self._store = EmbeddedStore()
        self._session = self._store.connect()
        registration.ensure_roots(self._session)
        node = ControllerNode(broker_id=0, timestamp_ms=NOW_MS)
        self._session.create(paths.CONTROLLER, node.encode(), ephemeral=True)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="replica-cluster", daemon=True)

    # --- life ------------------------------------------------------------------------------------------------

    def __enter__(self) -> Self:
        self._thread.start()
        for broker_id in self.ids:
            self.start(broker_id)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for broker_id in list(self.servers):
            self.stop(broker_id)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine in the brokers' loop."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(STALL_S)

    def start(self, broker_id: int, **options: str) -> None:
        """Start a broker on its earlier data. The controller does not notify it yet."""
        config = BrokerConfig.load(
            {
                **self._options,
                "broker.id": str(broker_id),
                "log.dirs": str(self._directory / str(broker_id)),
                "listeners": listeners_at(Listener("127.0.0.1", self.addresses.get(broker_id, 0))),
                **{name.replace("_", "."): value for name, value in options.items()},
            }
        )
        self.run(self._start(broker_id, config))

    async def _start(self, broker_id: int, config: BrokerConfig) -> None:
        server = BrokerServer(config, store=_Sessions(self._store))
        starting = asyncio.create_task(server.start())
        await eventually_async(lambda: hasattr(server, "broker") or starting.done(), "the broker to be opened")
        if hasattr(server, "broker"):
            self.servers[broker_id] = server
            await self._introduce()
        await starting
        server.broker.replicas.alter_partition = self._alter
        self.addresses[broker_id] = server.port
        for topic in self.topic_ids:
            await self._write_topic(server.broker, topic)

    async def _introduce(self) -> None:
        """Send all brokers the addresses of the live ones."""
        live = tuple(
            LiveBroker(
                broker_id=each,
                rack=self.servers[each].broker.config.broker_rack,
                endpoints=self.servers[each].broker.endpoints,
            )
            for each in sorted(self.servers)
        )
        for server in self.servers.values():
            member = server.broker.member
            await eventually_async(lambda member=member: member.broker_epoch >= 0, "the registration")
            await member.update_metadata(self._metadata_request(member.broker_epoch, {}), live)

    def stop(self, broker_id: int) -> None:
        """Stop a broker cleanly."""
        server = self.servers.pop(broker_id)
        self.run(server.stop())
        self.run(self._introduce())

    def kill(self, broker_id: int) -> None:
        """Kill a broker as kill -9 does. It writes nothing more, and its written data stays."""
        self.run(self._kill(broker_id))

    async def _kill(self, broker_id: int) -> None:
        server = self.servers.pop(broker_id)
        broker = server.broker
        await broker.replicas.close()
        logs = broker.logs
        logs._is_closed = True  # none of the steps of a clean stop
        logs.moves.stop()
        logs._background.stop()
        logs._directories.release()
        await server.stop()
        await self._introduce()

    def broker(self, broker_id: int) -> Broker:
        """Return a broker that runs."""
        return self.servers[broker_id].broker

    def log(self, broker_id: int, topic: str, partition: int = 0) -> PartitionLog:
        """Return a replica's log."""
        log = self.broker(broker_id).logs.get(topic, partition)
        assert log is not None
        return log

    @property
    def bootstrap_servers(self) -> str:
        """Return the bootstrap servers of clients."""
        return ",".join(f"127.0.0.1:{self.addresses[each]}" for each in self.servers)

    # --- the controller --------------------------------------------------------------------------------------

    def create(self, topic: str, *replicas: tuple[int, ...], **options: str) -> None:
        """Create a topic from the replicas of each partition. The first replica leads."""
        self.topic_ids[topic] = uuid.uuid4()
        self.configs[topic] = {name.replace("_", "."): value for name, value in options.items()}
        for number, each in enumerate(replicas):
            partition = TopicPartition(topic, number)
            self.assignments[partition] = ReplicaAssignment(each)
            self.leadership[partition] = Leadership(
                leader=each[0], leader_epoch=0, isr=each, partition_epoch=0, controller_epoch=self.epoch
            )
        self.tell(topic, is_new=True)

    def elect(self, topic: str, leader: int, *, partition: int = 0, isr: Iterable[int] | None = None) -> None:
        """Elect another broker, or the same one in a new epoch. ``isr`` replaces the ISR, if given."""
        key = TopicPartition(topic, partition)
        current = self.leadership[key]
        self.leadership[key] = replace(
            current,
            leader=leader,
            leader_epoch=current.leader_epoch + 1,
            partition_epoch=current.partition_epoch + 1,
            isr=tuple(current.isr if isr is None else isr),
        )
        self.tell(topic)

    def elect_unheard(self, topic: str, leader: int, *, by: int) -> None:
        """Elect another broker alone.

        The earlier leader (``by``) does not learn of it, still leads and tells its clients so.
        """
        key = TopicPartition(topic, 0)
        current = self.leadership[key]
        epochs = {"leader_epoch": current.leader_epoch + 1, "partition_epoch": current.partition_epoch + 1}
        self.leadership[key] = replace(current, leader=leader, isr=(leader,), **epochs)
        state = LeaderAndIsrState(leadership=self.leadership[key], assignment=self.assignments[key], is_new=False)
        for broker_id, server in self.servers.items():
            if broker_id != by:
                self.run(self._write_topic(server.broker, topic))
                self.run(server.broker.replicas.become(self.request({key: state}), {}))

    def assign(self, topic: str, *replicas: int, partition: int = 0) -> None:
        """Give a partition other replicas."""
        key = TopicPartition(topic, partition)
        self.assignments[key] = ReplicaAssignment(replicas)
        self.elect(topic, self.leadership[key].leader, partition=partition)

    def tell(self, topic: str, *brokers: int, is_new: bool = False) -> None:
        """Send brokers and their clients the leader and followers."""
        self.run(self._tell(topic, brokers or tuple(self.servers), is_new=is_new))

    async def _tell(self, topic: str, brokers: Iterable[int], *, is_new: bool) -> None:
        for server in self.servers.values():
            await self._write_topic(server.broker, topic)
        for broker_id in brokers:
            wanted = {
                partition: LeaderAndIsrState(
                    leadership=self.leadership[partition], assignment=assignment, is_new=is_new
                )
                for partition, assignment in self.assignments.items()
                if partition.topic == topic and broker_id in assignment.replicas
            }
            if wanted and broker_id in self.servers:
                answers = await self.broker(broker_id).replicas.become(self.request(wanted), {})
                stale = {each for each, error in answers.items() if error is not None and error.code != 11}
                assert not stale, answers

    def request(self, partitions: Mapping[TopicPartition, LeaderAndIsrState]) -> LeaderAndIsrRequest:
        """Build a request of this controller."""
        return LeaderAndIsrRequest(
            controller_id=0,
            controller_epoch=self.epoch,
            broker_epoch=1,
            topic_ids=self.topic_ids,
            partitions=partitions,
            live_leaders=tuple(self.servers),
        )

    def tell_all(self, topic: str, broker_id: int) -> None:
        """Send a broker the leaders of a topic's partitions. Every broker gets these, with or without replicas."""
        self.run(self.broker(broker_id).replicas.stop_reassigned(self._metadata_request(1, self._states_of(topic))))

    def _states_of(self, topic: str) -> dict[TopicPartition, LeaderAndIsrState]:
        return {
            partition: LeaderAndIsrState(leadership=self.leadership[partition], assignment=assignment, is_new=False)
            for partition, assignment in self.assignments.items()
            if partition.topic == topic
        }

    def _metadata_request(
        self, broker_epoch: int, partitions: Mapping[TopicPartition, LeaderAndIsrState]
    ) -> UpdateMetadataRequest:
        return UpdateMetadataRequest(
            controller_id=0,
            controller_epoch=self.epoch,
            broker_epoch=broker_epoch,
            topic_ids=self.topic_ids,
            partitions=partitions,
            live_brokers=tuple(self.servers),
        )

    def delete_replica(self, topic: str, broker_id: int, partition: int = 0) -> MillraceError | None:
        """Have a replica stopped and deleted."""
        key = TopicPartition(topic, partition)
        request = StopReplicaRequest(
            controller_id=0,
            controller_epoch=self.epoch,
            broker_epoch=1,
            partitions={key: StopReplicaState(leader_epoch=-2, is_deleted=True)},
        )
        return self.run(self.broker(broker_id).replicas.stop(request))[key]

    async def _alter(self, partition: TopicPartition, change: IsrChange) -> Leadership:
        """Answer a leader's AlterPartition request."""
        refusal = self.refuses_isr()
        if refusal is not None:
            raise refusal
        current = self.leadership[partition]
        if change.leader_epoch < current.leader_epoch:
            raise FencedLeaderEpochError(f"{partition}: {change.leader_epoch}")
        if change.partition_epoch < current.partition_epoch:
            raise InvalidUpdateVersionError(f"{partition}: {change.partition_epoch}")
        self.isr_changes.append((partition, change.isr))
        self.leadership[partition] = replace(current, isr=change.isr, partition_epoch=current.partition_epoch + 1)
        return self.leadership[partition]

    async def _write_topic(self, broker: Broker, topic: str) -> None:
        await broker.executors.administer(self._write_nodes, broker, topic)

    def _write_nodes(self, broker: Broker, topic: str) -> None:
        own = {each.partition: value for each, value in self.assignments.items() if each.topic == topic}
        node = TopicNode(self.topic_ids[topic], {number: each.replicas for number, each in own.items()})
        contents = {
            paths.topic_path(topic): node.encode(),
            paths.topic_config_path(topic): ConfigNode(self.configs[topic]).encode(),
        }
        for path, content in contents.items():
            ensure_path(self._session, path)
            self._session.set(path, content)
        broker.catalog.refresh(topic)
        broker.catalog.update_metadata(self._metadata_request(1, self._states_of(topic)))

    def set_lag(self, lag_ms: int, topic: str, partition: int = 0) -> None:
        """Apply another ``replica.lag.time.max.ms`` to a partition's leader. Its broker checks the ISR more often."""
        replicas = self.broker(self.leadership[TopicPartition(topic, partition)].leader).replicas
        hosted = replicas.find(topic, partition)
        assert hosted is not None

        async def apply(leader: Leader = hosted.leader) -> None:
            leader.settings = replace(leader.settings, replica_lag_time_max_ms=lag_ms)
            replicas._begin(replicas._shrink_isrs(LAG_MS / 2000))

        self.run(apply())

    # --- queries ---------------------------------------------------------------------------------------------

    def isr(self, topic: str, partition: int = 0) -> set[int]:
        """Return the ISR that the controller has."""
        return set(self.leadership[TopicPartition(topic, partition)].isr)

    def leadership_of(self, topic: str, partition: int = 0) -> Leadership:
        """Return the leader that the controller has."""
        return self.leadership[TopicPartition(topic, partition)]

    def wait_for_isr(self, topic: str, *brokers: int, partition: int = 0) -> None:
        """Wait until the ISR is exactly these brokers."""
        eventually(lambda: self.isr(topic, partition) == set(brokers), f"ISR {brokers}")

    def settle(self, topic: str, partition: int = 0) -> None:
        """Wait until all running replicas have the same end offset and high watermark."""
        up = [each for each in self.assignments[TopicPartition(topic, partition)].replicas if each in self.servers]
        leader = self.leadership[TopicPartition(topic, partition)].leader

        def is_settled() -> bool:
            end = self.log(leader, topic, partition).log_end_offset
            logs = [self.log(each, topic, partition) for each in up]
            return all((log.log_end_offset, log.high_watermark) == (end, end) for log in logs)

        try:
            eventually(is_settled, f"{topic}-{partition} settled")
        except AssertionError:
            raise AssertionError([self.describe(each, topic, partition) for each in up]) from None

    def describe(self, broker_id: int, topic: str, partition: int = 0) -> str:
        """Describe a replica's state in text."""
        log, replica = self.log(broker_id, topic, partition), self.broker(broker_id).replicas.find(topic, partition)
        role = None if replica is None else replica.machine.role
        isr = sorted(role.isr) if isinstance(role, Leader) else ""
        stage = role.stage if isinstance(role, Follower) else ""
        epoch = None if replica is None else replica.machine.leader_epoch
        return (
            f"broker {broker_id}: {type(role).__name__} {isr}{stage} of epoch {epoch}, "
            f"log to {log.log_end_offset}, watermark {log.high_watermark}, epochs {log.epochs.entries}"
        )

    def content(self, broker_id: int, topic: str, partition: int = 0) -> bytes:
        """Return all bytes of a replica's segments."""
        log = self.log(broker_id, topic, partition)
        return b"".join(segment.read(0, segment.size_bytes) for segment in log.segments)

    def assert_identical(self, topic: str, partition: int = 0) -> None:
        """Check that all running replicas have the same bytes and leader epochs."""
        up = [each for each in self.assignments[TopicPartition(topic, partition)].replicas if each in self.servers]
        first, *others = [self.content(each, topic, partition) for each in up]
        assert all(other == first for other in others), {each: len(self.content(each, topic)) for each in up}
        end = self.log(up[0], topic, partition).log_end_offset
        epochs = {
            tuple(epoch for epoch in self.log(each, topic, partition).epochs.entries if epoch[1] < end) for each in up
        }
        assert len(epochs) == 1, epochs


def append(
    cluster: ReplicaCluster,
    broker_id: int,
    topic: str,
    *values: bytes,
    acks: int = -1,
    partition: int = 0,
    timeout_ms: int = AN_HOUR_MS,
    **options: Any,
) -> pb.ProduceResponse.PartitionResult:
    """Append one batch at a broker as a client does."""
    records = build_rows_batch([Record(key=None, value=value, timestamp_ms=NOW_MS) for value in values], **options)
    data = pb.ProduceRequest.PartitionData(partition=partition, records=records)
    request = pb.ProduceRequest(
        acks=acks, timeout_ms=timeout_ms, topics=[pb.ProduceRequest.TopicData(name=topic, partitions=[data])]
    )
    other = next((each for each in cluster.servers if each != broker_id), broker_id)
    response: pb.ProduceResponse = cluster.run(
        cluster.broker(other).peers.call(broker_id, "Produce", request, timeout_s=STALL_S)
    )
    return response.topics[0].partitions[0] if acks else pb.ProduceResponse.PartitionResult()


def values_of(
    cluster: ReplicaCluster, topic: str, partition: int = 0, options: dict[str, str] | None = None
) -> list[bytes]:
    """Return all values that a consumer reads, in order."""
    settings = {"bootstrap.servers": cluster.bootstrap_servers, "auto.offset.reset": "earliest", **(options or {})}
    with Consumer(settings) as consumer:
        place = Place(topic, partition)
        consumer.assign([place])
        end = consumer.end_offsets([place])[place]
        found: list[bytes] = []
        stall = Stall("all records")
        while consumer.position(place) < end:
            stall.check(len(found))
            found += [record.value for record in consumer.poll(200) if isinstance(record.value, bytes)]
        return found
