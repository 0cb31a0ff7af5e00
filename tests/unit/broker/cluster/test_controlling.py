"""Controllers of several brokers on one store, whose sessions end at every step of what they do."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable
from typing import Any

import pytest

from millrace.config.broker import BrokerConfig
from millrace.coordination import ConnectionLossError, Coordination, Create, EmbeddedStore, paths
from millrace.coordination.nodes import BrokerNode, ConfigNode, PartitionStateNode, TopicNode
from millrace.errors import NotControllerError
from millrace_broker.cluster import controlling
from millrace_broker.cluster.controlling import Controlling
from millrace_broker.cluster.wire import Answers
from millrace_broker.controller import IsrChange, Leadership, TopicPartition
from millrace_broker.controller.requests import BrokerRequest, LeaderAndIsrRequest, UpdateMetadataRequest
from millrace_broker.metadata import registration


class Cluster:
    """Brokers without logs: they answer that all is done, and remember what they were told."""

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

    @property
    def active(self) -> list[int]:
        return [each for each, node in self.nodes.items() if node.controlling.is_active]


BALANCE_INTERVAL = "leader.imbalance.check.interval.seconds"
NO_OPTIONS = ConfigNode({}).encode()


class Node:
    """One broker; its session ends before, or after, the ``dies_at``-th call to the store, or that call is lost.

    ``loses``: so many calls in a row are.
    """

    def __init__(self, cluster: Cluster, broker_id: int) -> None:
        self.cluster, self.broker_id = cluster, broker_id
        config = BrokerConfig.load({"broker.id": str(broker_id)} | cluster.options)
        self.controlling = Controlling(
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

    async def administer(self, function: Callable[..., Any], /, *args: Any) -> Any:
        await asyncio.sleep(0)
        self.calls += 1
        is_last = self.calls == self.dies_at
        is_lost = 0 <= self.calls - self.dies_at < self.loses
        if is_last and self.how == "before":
            self.expire()
        if is_lost and self.how == "lost before":
            raise ConnectionLossError("lost", maybe_applied=False)
        result = function(*args)
        if is_last and self.how == "after":
            self.expire()
        if is_lost and self.how == "lost after":
            raise ConnectionLossError("lost", maybe_applied=True)
        return result

    def take(self, request: BrokerRequest) -> None:
        if isinstance(request, LeaderAndIsrRequest):
            for partition, state in request.partitions.items():
                key = partition, state.leadership.leader_epoch
                leader = self.cluster.leaders.setdefault(key, state.leadership.leader)
                assert leader == state.leadership.leader, f"two leaders of {partition} in one epoch"
                self.told[partition] = state.leadership
        elif isinstance(request, UpdateMetadataRequest):
            self.clients_told.update({each: state.leadership for each, state in request.partitions.items()})


async def eventually(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not holds():
            await asyncio.sleep(0.001)


def test_one_of_the_brokers_is_the_controller_and_leads_topics_somewhere() -> None:
    async def scenario() -> None:
        async with Cluster(0, 1, 2) as cluster:
            await eventually(lambda: len(cluster.active) == 1)
            cluster.create("t", (1, 2), (2, 0))
            partition = TopicPartition("t", 0)
            await eventually(lambda: all(partition in node.clients_told for node in cluster.nodes.values()))
            state = cluster.state("t")
            assert state is not None
            assert (state.leader, state.isr, state.leader_epoch) == (1, (1, 2), 0)
            assert partition in cluster.nodes[1].told
            assert partition not in cluster.nodes[0].told

    asyncio.run(scenario())


@pytest.mark.parametrize("how", ["before", "after", "lost before", "lost after"])
@pytest.mark.parametrize("step", range(1, 25))
def test_the_end_of_the_controllers_session_at_any_step_is_survived(step: int, how: str) -> None:
    """Of an election with a topic to be led, one to be deleted and one that comes while it goes on."""

    async def scenario() -> None:
        cluster = Cluster(0, 1)
        cluster.create("old", (0, 1))
        cluster.create("gone", (1, 0))
        cluster.delete("gone")
        cluster.nodes[0].dies_at, cluster.nodes[0].how = step, how
        async with cluster:
            cluster.create("new", (1, 0))
            await eventually(lambda: cluster.is_gone("gone"))
            for topic in ("old", "new"):
                partition = TopicPartition(topic, 0)
                await eventually(lambda topic=topic: (s := cluster.state(topic)) is not None and s.leader in (0, 1))
                await eventually(
                    lambda partition=partition: all(
                        partition in each.clients_told and each.clients_told[partition].leader in (0, 1)
                        for each in cluster.nodes.values()
                    )
                )
            await eventually(lambda: len(cluster.active) == 1)

    asyncio.run(scenario())


def test_a_controller_whose_session_is_over_refuses_who_waits_for_it_and_another_takes_over() -> None:
    async def scenario() -> None:
        async with Cluster(0, 1) as cluster:
            await eventually(lambda: len(cluster.active) == 1)
            first = cluster.nodes[cluster.active[0]]
            epoch = first.controlling.epoch
            cluster.create("t", (0, 1))
            await eventually(lambda: cluster.state("t") is not None)
            first.calls, first.dies_at = 0, 1
            with pytest.raises(NotControllerError):
                await first.controlling.ask("move", lambda each: each.reassign({TopicPartition("t", 0): (1, 0)}))
            await eventually(lambda: len(cluster.active) == 1)
            await eventually(lambda: cluster.nodes[cluster.active[0]].controlling.epoch > epoch)

    asyncio.run(scenario())


@pytest.mark.parametrize("loses", [2, 3, 4])
def test_a_chair_that_could_not_be_left_is_left_later(loses: int) -> None:
    """Whoever sat in it idly, for he took himself for another, would leave the cluster without a controller."""

    async def scenario() -> None:
        async with Cluster(0, 1) as cluster:
            await eventually(lambda: len(cluster.active) == 1)
            first = cluster.nodes[cluster.active[0]]
            epoch = first.controlling.epoch
            cluster.create("t", (0, 1))
            await eventually(lambda: cluster.state("t") is not None)
            first.calls, first.dies_at, first.how, first.loses = 0, 1, "lost before", loses
            with pytest.raises(NotControllerError):
                await first.controlling.ask("move", lambda each: each.reassign({TopicPartition("t", 0): (1, 0)}))
            await eventually(lambda: any(each.controlling.epoch > epoch for each in cluster.nodes.values()))

    asyncio.run(scenario())


def test_whoever_loses_the_chair_while_he_thinks_that_he_has_it_writes_nothing() -> None:
    async def scenario() -> None:
        async with Cluster(0, 1) as cluster:
            await eventually(lambda: len(cluster.active) == 1)
            epoch = cluster.nodes[cluster.active[0]].controlling.epoch
            cluster.outside.delete(paths.CONTROLLER)  # as an administrator does to have another one
            await eventually(
                lambda: len(cluster.active) == 1 and cluster.nodes[cluster.active[0]].controlling.epoch > epoch
            )
            cluster.create("t", (0, 1))
            await eventually(lambda: cluster.state("t") is not None)

    asyncio.run(scenario())


def test_a_broker_that_goes_is_led_for_and_comes_back() -> None:
    async def scenario() -> None:
        async with Cluster(0, 1, 2) as cluster:
            await eventually(lambda: len(cluster.active) == 1)
            cluster.create("t", (2, 1))
            await eventually(lambda: cluster.state("t") is not None)
            node = cluster.nodes[2]
            node.is_closed = True  # it does not come back by itself
            node.expire()
            await eventually(lambda: (s := cluster.state("t")) is not None and s.leader == 1 and s.isr == (1,))
            node.is_closed = False
            node._over()
            await eventually(lambda: node.told[TopicPartition("t", 0)].leader == 1)

    asyncio.run(scenario())


def test_a_session_that_follows_before_the_last_one_was_looked_at_is_run_for_controller_under() -> None:
    async def scenario() -> None:
        async with Cluster(0) as cluster:
            node = cluster.nodes[0]
            for _ in range(3):
                node.expire()  # its events are in the queue, and not handled yet
                await asyncio.sleep(0)
            await eventually(lambda: cluster.active == [0])
            first = node.session
            cluster.store.expire(first.session_id)
            await eventually(lambda: node.session is not first and cluster.active == [0])

    asyncio.run(scenario())


def test_a_partition_goes_back_to_the_broker_that_is_to_lead_it(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        monkeypatch.setattr(controlling, "_FIRST_BALANCE_S", 0.01)
        cluster = Cluster(0, 1, options={"auto.leader.rebalance.enable": "true", BALANCE_INTERVAL: "1"})
        cluster.create("t", (0, 1))
        partition = TopicPartition("t", 0)
        async with cluster:
            await eventually(lambda: cluster.leads("t", 0))
            cluster.nodes[0].is_closed = True  # it does not come back by itself
            cluster.nodes[0].expire()
            cluster.nodes[0].controlling.session_over()
            await eventually(lambda: cluster.leads("t", 1) and cluster.active == [1])
            cluster.nodes[0].is_closed = False
            cluster.nodes[0]._over()
            state = cluster.state("t")
            assert state is not None
            epoch = registration_epoch(cluster, 1)
            await eventually(lambda: cluster.nodes[0].told[partition].leader == 1)
            version = cluster.outside.get(paths.partition_state_path("t", 0))[1].version
            change = IsrChange(isr=(0, 1), leader_epoch=state.leader_epoch, partition_epoch=version)
            active = cluster.nodes[cluster.active[0]].controlling
            answers = await active.ask("isr", lambda each: each.alter_isrs(1, epoch, {partition: change}))
            assert isinstance(answers[partition], Leadership)
            await eventually(lambda: cluster.leads("t", 0))

    asyncio.run(scenario())


def registration_epoch(cluster: Cluster, broker_id: int) -> int:
    return cluster.outside.get(paths.broker_path(broker_id))[1].created_id
