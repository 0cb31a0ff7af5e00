"""Controllers of several brokers on one store.

Their sessions can end at every step. The brokers have no logs.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable
from typing import Any

from millrace.config.broker import BrokerConfig
from millrace.coordination import ConnectionLossError, Coordination, Create, EmbeddedStore, paths
from millrace.coordination.nodes import BrokerNode, ConfigNode, PartitionStateNode, TopicNode
from millrace_broker.controller.event_loop import ControllerEventLoop
from millrace_broker.decisions import (
    Answers,
    BrokerRequest,
    IsrChange,
    LeaderAndIsrRequest,
    Leadership,
    TopicPartition,
    UpdateMetadataRequest,
)
from millrace_broker.metadata import registration

from ....integration.waiting import STALL_S


class Cluster:
    """Brokers without logs. They confirm every request and record it."""

    def __init__(self, *broker_ids: int, options: dict[str, str] | None = None) -> None:
        self.options = {"auto.leader.rebalance.enable": "false"} | (options or {})
        self.store = EmbeddedStore()
        self.outside = self.store.connect()
        registration.ensure_roots(self.outside)
        self.nodes = {each: Node(self, each) for each in broker_ids}
        self.leaders: dict[tuple[TopicPartition, int], int] = {}

    async def __aenter__(self) -> Cluster:
        for node in self.nodes.values():
            node.controlling.start()
            node.join()
        return self

    async def __aexit__(self, *_: object) -> None:
        for node in self.nodes.values():
            node.is_closed = True
            await node.controlling.close()
        self.store.close()

    async def deliver(self, broker_id: int, request: BrokerRequest) -> Answers:
        await asyncio.sleep(0)
        self.nodes[broker_id].take(request)
        return {}

    def create(self, topic: str, *replicas: tuple[int, ...]) -> None:
        node = TopicNode(uuid.uuid4(), dict(enumerate(replicas)))
        self.outside.multi(
            [Create(paths.topic_path(topic), node.encode()), Create(paths.topic_config_path(topic), NO_OPTIONS)]
        )

    def delete(self, topic: str) -> None:
        self.outside.create(paths.delete_topic_path(topic))

    def state(self, topic: str, partition: int = 0) -> PartitionStateNode | None:
        path = paths.partition_state_path(topic, partition)
        if self.outside.exists(path) is None:
            return None
        return PartitionStateNode.decode(self.outside.get(path)[0])

    def leads(self, topic: str, broker_id: int) -> bool:
        state = self.state(topic)
        return state is not None and state.leader == broker_id

    def is_gone(self, topic: str) -> bool:
        return all(
            self.outside.exists(path) is None
            for path in (paths.topic_path(topic), paths.topic_config_path(topic), paths.delete_topic_path(topic))
        )

    async def bring_in_sync(self, topic: str, isr: tuple[int, ...]) -> None:
        """Have the leader of partition 0 request this ISR, again after each new leader epoch."""
        partition, answer = TopicPartition(topic, 0), None
        async with asyncio.timeout(STALL_S):
            while not isinstance(answer, Leadership):
                state = self.state(topic)
                assert state is not None
                epoch = registration_epoch(self, state.leader)
                version = self.outside.get(paths.partition_state_path(topic, 0))[1].version
                answer = await self._ask_for_isr(
                    partition,
                    state.leader,
                    epoch,
                    IsrChange(isr=isr, leader_epoch=state.leader_epoch, partition_epoch=version),
                )

    async def _ask_for_isr(self, partition: TopicPartition, leader: int, epoch: int, change: IsrChange) -> object:
        active = self.nodes[self.active[0]].controlling
        answers = await active.ask("isr", lambda each: each.alter_isrs(leader, epoch, {partition: change}))
        return answers[partition]

    @property
    def active(self) -> list[int]:
        return [each for each, node in self.nodes.items() if node.controlling.is_active]


NO_OPTIONS = ConfigNode({}).encode()


class Node:
    """One broker whose session ends at a certain call.

    The session ends before or after the ``dies_at``-th call to the store, or the call is lost. ``loses`` is the number
    of consecutive calls that are lost.
    """

    def __init__(self, cluster: Cluster, broker_id: int) -> None:
        self.cluster, self.broker_id = cluster, broker_id
        config = BrokerConfig.load({"broker.id": str(broker_id)} | cluster.options)
        self.controlling = ControllerEventLoop(
            config, lambda: 0, self.administer, cluster.deliver, lambda nodes: None, pause_s=0.001
        )
        self.session: Coordination
        self.told: dict[TopicPartition, Leadership] = {}
        self.clients_told: dict[TopicPartition, Leadership] = {}
        self.calls = 0
        self.dies_at = 0
        self.how = "before"
        self.loses = 1
        self.is_closed = False

    def join(self) -> None:
        session = self.session = self.cluster.store.connect()
        loop = asyncio.get_running_loop()
        session.on_session_end(lambda: loop.call_soon_threadsafe(self._over))
        node = BrokerNode(host="h", port=9000 + self.broker_id, timestamp_ms=0)
        registration.register(session, self.broker_id, node)
        self.controlling.begin(session)

    def _over(self) -> None:
        if not self.is_closed:
            self.controlling.session_over()
            self.join()

    def expire(self) -> None:
        self.cluster.store.expire(self.session.session_id)

    async def administer(self, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        await asyncio.sleep(0)
        self.calls += 1
        is_last = self.calls == self.dies_at
        is_lost = 0 <= self.calls - self.dies_at < self.loses
        if is_last and self.how == "before":
            self.expire()
        if is_lost and self.how == "lost before":
            raise ConnectionLossError("lost", maybe_applied=False)
        result = function(*args, **kwargs)
        if is_last and self.how == "after":
            self.expire()
        if is_lost and self.how == "lost after":
            raise ConnectionLossError("lost", maybe_applied=True)
        return result

    def leader_of(self, partition: TopicPartition) -> int | None:
        """Return the leader that the controller sent to this broker last."""
        leadership = self.told.get(partition)
        return None if leadership is None else leadership.leader

    def take(self, request: BrokerRequest) -> None:
        if isinstance(request, LeaderAndIsrRequest):
            for partition, state in request.partitions.items():
                key = partition, state.leadership.leader_epoch
                leader = self.cluster.leaders.setdefault(key, state.leadership.leader)
                assert leader == state.leadership.leader, f"two leaders of {partition} in one epoch"
                self.told[partition] = state.leadership
        elif isinstance(request, UpdateMetadataRequest):
            self.clients_told.update({each: state.leadership for each, state in request.partitions.items()})


def registration_epoch(cluster: Cluster, broker_id: int) -> int:
    return cluster.outside.get(paths.broker_path(broker_id))[1].created_id
