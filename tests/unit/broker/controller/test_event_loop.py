"""Tests of the controller's event loop with ending sessions.

Sessions end at every step. The controllers of several brokers share one store.
"""

from __future__ import annotations

import asyncio

import pytest

from millrace.coordination import paths
from millrace.coordination.nodes import ControllerNode, TopicNode
from millrace.errors import NotControllerError
from millrace_broker.controller import event_loop as controlling
from millrace_broker.decisions import TopicPartition

from ....integration.waiting import eventually_async
from .controllers import Cluster

BALANCE_INTERVAL = "leader.imbalance.check.interval.seconds"


def test_one_of_the_brokers_is_the_controller_and_leads_topics_somewhere() -> None:
    async def scenario() -> None:
        async with Cluster(0, 1, 2) as cluster:
            await eventually_async(lambda: len(cluster.active) == 1)
            cluster.create("t", (1, 2), (2, 0))
            partition = TopicPartition("t", 0)
            await eventually_async(lambda: all(partition in node.clients_told for node in cluster.nodes.values()))
            state = cluster.state("t")
            assert state is not None
            assert (state.leader, state.isr, state.leader_epoch) == (1, (1, 2), 0)
            assert partition in cluster.nodes[1].told
            assert partition not in cluster.nodes[0].told

    asyncio.run(scenario())


LAST_STEP = 24
"""More calls to the store than the first controller makes in ``elect_create_and_delete``."""


async def elect_create_and_delete(cluster: Cluster) -> None:
    """Elect a controller while one topic needs a leader, one is to be deleted and one is created."""
    cluster.create("old", (0, 1))
    cluster.create("gone", (1, 0))
    cluster.delete("gone")
    async with cluster:
        cluster.create("new", (1, 0))
        await eventually_async(lambda: cluster.is_gone("gone"))
        for topic in ("old", "new"):
            partition = TopicPartition(topic, 0)
            await eventually_async(lambda topic=topic: (s := cluster.state(topic)) is not None and s.leader in (0, 1))
            await eventually_async(
                lambda partition=partition: all(
                    partition in each.clients_told and each.clients_told[partition].leader in (0, 1)
                    for each in cluster.nodes.values()
                )
            )
        await eventually_async(lambda: len(cluster.active) == 1)


@pytest.mark.parametrize("how", ["before", "after", "lost before", "lost after"])
@pytest.mark.parametrize("step", range(1, LAST_STEP + 1))
def test_the_end_of_the_controllers_session_at_any_step_is_survived(step: int, how: str) -> None:
    cluster = Cluster(0, 1)
    cluster.nodes[0].dies_at, cluster.nodes[0].how = step, how
    asyncio.run(elect_create_and_delete(cluster))


def test_the_scenario_has_fewer_steps_than_the_tests_interrupt() -> None:
    cluster = Cluster(0, 1)
    asyncio.run(elect_create_and_delete(cluster))
    assert 0 < cluster.nodes[0].calls < LAST_STEP


def test_a_controller_with_an_expired_session_refuses_waiting_callers_and_is_replaced() -> None:
    async def scenario() -> None:
        async with Cluster(0, 1) as cluster:
            await eventually_async(lambda: len(cluster.active) == 1)
            first = cluster.nodes[cluster.active[0]]
            epoch = first.controlling.epoch
            cluster.create("t", (0, 1))
            await eventually_async(lambda: cluster.state("t") is not None)
            first.calls, first.dies_at = 0, 1
            with pytest.raises(NotControllerError):
                await first.controlling.ask("move", lambda each: each.reassign({TopicPartition("t", 0): (1, 0)}))
            await eventually_async(lambda: len(cluster.active) == 1)
            await eventually_async(lambda: cluster.nodes[cluster.active[0]].controlling.epoch > epoch)

    asyncio.run(scenario())


@pytest.mark.parametrize("loses", [2, 3, 4])
def test_a_controller_node_that_could_not_be_deleted_is_deleted_later(loses: int) -> None:
    # A broker whose id is in the node and that does not act as controller would leave the cluster without a controller.
    async def scenario() -> None:
        async with Cluster(0, 1) as cluster:
            await eventually_async(lambda: len(cluster.active) == 1)
            first = cluster.nodes[cluster.active[0]]
            epoch = first.controlling.epoch
            cluster.create("t", (0, 1))
            await eventually_async(lambda: cluster.state("t") is not None)
            first.calls, first.dies_at, first.how, first.loses = 0, 1, "lost before", loses
            with pytest.raises(NotControllerError):
                await first.controlling.ask("move", lambda each: each.reassign({TopicPartition("t", 0): (1, 0)}))
            await eventually_async(lambda: any(each.controlling.epoch > epoch for each in cluster.nodes.values()))

    asyncio.run(scenario())


def test_a_controller_that_has_lost_the_election_unnoticed_writes_nothing() -> None:
    async def scenario() -> None:
        async with Cluster(0, 1) as cluster:
            await eventually_async(lambda: len(cluster.active) == 1)
            epoch = cluster.nodes[cluster.active[0]].controlling.epoch
            cluster.outside.delete(paths.CONTROLLER)  # an administrator does this to force an election
            await eventually_async(
                lambda: len(cluster.active) == 1 and cluster.nodes[cluster.active[0]].controlling.epoch > epoch
            )
            cluster.create("t", (0, 1))
            await eventually_async(lambda: cluster.state("t") is not None)

    asyncio.run(scenario())


@pytest.mark.parametrize("written", [ControllerNode(broker_id=7, timestamp_ms=0).encode(), b"nonsense"])
def test_an_overwritten_controller_node_is_deleted_and_a_new_election_runs(written: bytes) -> None:
    # Otherwise clients and tools would ask the broker named in the node, and no broker would become controller.
    async def scenario() -> None:
        async with Cluster(0, 1) as cluster:
            await eventually_async(lambda: len(cluster.active) == 1)
            epoch = cluster.nodes[cluster.active[0]].controlling.epoch
            cluster.outside.set(paths.CONTROLLER, written)
            await eventually_async(
                lambda: len(cluster.active) == 1 and cluster.nodes[cluster.active[0]].controlling.epoch > epoch
            )
            assert ControllerNode.decode(cluster.outside.get(paths.CONTROLLER)[0]).broker_id == cluster.active[0]
            cluster.create("t", (0, 1))
            await eventually_async(lambda: cluster.state("t") is not None)

    asyncio.run(scenario())


def test_a_topic_that_is_deleted_before_the_controller_knows_it_is_deleted() -> None:
    async def scenario() -> None:
        async with Cluster(0, 1) as cluster:
            await eventually_async(lambda: len(cluster.active) == 1)
            cluster.create("first", (0, 1))
            await eventually_async(lambda: all(each.clients_told for each in cluster.nodes.values()))
            cluster.delete("first")  # this event is queued before the one of the next topic
            cluster.create("second", (0, 1))
            cluster.delete("second")
            await eventually_async(lambda: cluster.is_gone("first"))
            await eventually_async(lambda: cluster.outside.exists(paths.delete_topic_path("second")) is None)
            assert cluster.is_gone("second")

    asyncio.run(scenario())


def test_a_broker_that_goes_is_led_for_and_comes_back() -> None:
    async def scenario() -> None:
        async with Cluster(0, 1, 2) as cluster:
            await eventually_async(lambda: len(cluster.active) == 1)
            cluster.create("t", (2, 1))
            await eventually_async(lambda: cluster.state("t") is not None)
            node = cluster.nodes[2]
            node.is_closed = True  # the broker does not restart by itself
            node.expire()
            await eventually_async(lambda: (s := cluster.state("t")) is not None and s.leader == 1 and s.isr == (1,))
            node.is_closed = False
            node._over()
            await eventually_async(lambda: node.leader_of(TopicPartition("t", 0)) == 1)

    asyncio.run(scenario())


def test_a_controller_is_elected_under_the_newest_of_quickly_expired_sessions() -> None:
    async def scenario() -> None:
        async with Cluster(0) as cluster:
            node = cluster.nodes[0]
            for _ in range(3):
                node.expire()  # the controller's events are queued and not handled yet
                await asyncio.sleep(0)
            await eventually_async(lambda: cluster.active == [0])
            first = node.session
            cluster.store.expire(first.session_id)
            await eventually_async(lambda: node.session is not first and cluster.active == [0])

    asyncio.run(scenario())


def test_a_partition_goes_back_to_the_broker_that_is_to_lead_it(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        monkeypatch.setattr(controlling, "_FIRST_BALANCE_S", 0.01)
        cluster = Cluster(0, 1, options={"auto.leader.rebalance.enable": "true", BALANCE_INTERVAL: "1"})
        cluster.create("t", (0, 1))
        partition = TopicPartition("t", 0)
        async with cluster:
            await eventually_async(lambda: cluster.leads("t", 0))
            cluster.nodes[0].is_closed = True  # the broker does not restart by itself
            cluster.nodes[0].expire()
            cluster.nodes[0].controlling.session_over()
            await eventually_async(lambda: cluster.leads("t", 1) and cluster.active == [1])
            cluster.nodes[0].is_closed = False
            cluster.nodes[0]._over()
            await eventually_async(lambda: cluster.nodes[0].leader_of(partition) == 1)
            await cluster.bring_in_sync("t", (0, 1))
            await eventually_async(lambda: cluster.leads("t", 0))

    asyncio.run(scenario())


async def enlarge(cluster: Cluster, dies_at: int, how: str) -> int:
    """Add a second partition to a topic while the controller's session ends.

    Return the number of calls of that controller.
    """
    cluster.create("t", (0, 1))
    async with cluster:
        await eventually_async(lambda: cluster.leads("t", 0) and len(cluster.active) == 1)
        await eventually_async(lambda: TopicPartition("t", 0) in cluster.nodes[1].clients_told)
        first = cluster.nodes[cluster.active[0]]
        first.calls, first.dies_at, first.how = 0, dies_at, how
        path = paths.topic_path("t")
        node = TopicNode.decode(cluster.outside.get(path)[0])
        cluster.outside.set(path, TopicNode(node.topic_id, {**node.assignment, 1: (1, 0)}).encode())
        added = TopicPartition("t", 1)
        await eventually_async(lambda: (s := cluster.state("t", 1)) is not None and s.leader in (0, 1))
        await eventually_async(lambda: all(added in each.clients_told for each in cluster.nodes.values()))
        await eventually_async(lambda: len(cluster.active) == 1)
    return first.calls


@pytest.mark.parametrize("how", ["before", "after", "lost before", "lost after"])
def test_adding_partitions_survives_the_end_of_the_controllers_session_at_any_step(how: str) -> None:
    dies_at = 1
    while asyncio.run(enlarge(Cluster(0, 1), dies_at, how)) >= dies_at:
        dies_at += 1
        assert dies_at < 30, "the operation has fewer steps"
    assert dies_at > 2
